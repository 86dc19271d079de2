"""Blind batches: is the plan right for a model that nobody has tried? README.md has the rules.

python examples/blind freeze CASES
python examples/blind judge CASES/*.py
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("lint", "head", "freeze", "judge", "works", "check"))
    parser.add_argument("cases", nargs="+", type=Path, help="case files, or folders of them")
    args = parser.parse_args()
    given = [sorted(p.glob("*.py")) if p.is_dir() else [p] for p in args.cases]
    cases = [path for paths in given for path in paths]
    if args.command == "freeze":
        for path in [*cases, HERE / "judge.py", HERE / "case.py"]:
            print(hashlib.sha256(path.read_bytes()).hexdigest(), path.name)
    elif args.command == "head":
        from head import head

        print("\n\n".join(map(head, cases)))
    elif len(cases) == 1:
        one(args.command, cases[0])
    else:  # many repositories call their module `model`: a process each
        command = [sys.executable, str(HERE), args.command]
        outcomes: Counter[str] = Counter()
        for path in cases:
            done = subprocess.run([*command, str(path)], capture_output=True, text=True)
            lines = done.stdout.splitlines()  # models may print, too
            starts = [i for i, line in enumerate(lines) if line.startswith(f"{path.stem}:")]
            told = lines[starts[0] :] if starts else [f"{path.stem}: wrong", done.stderr[-300:]]
            print("\n".join(told), flush=True)
            outcomes[(told[0].split(":")[1].split() or [""])[0]] += 1
        if args.command == "judge":
            print(", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items())))


def one(command: str, path: Path) -> None:
    import torch
    from case import load

    torch.set_num_threads(1)
    case = load(path.resolve())
    if command == "judge":
        from judge import judge

        outcome, findings = judge(case)
        print(f"{path.stem}: {outcome}  ({case.REPO} {case.COMMIT}, {case.DOMAIN})")
        for finding in findings:
            print(f"  {finding.status}: {finding.text}")
        return
    print(f"{path.stem}:")
    if command == "lint":
        from lint import lint

        for line in lint(case):
            print(f"  {line}")
        return
    import works

    for name, told in (works.works if command == "works" else works.check)(case):
        print(f"  {name}: {told}")


if __name__ == "__main__":
    main()
