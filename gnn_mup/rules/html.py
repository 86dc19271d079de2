"""A plan as HTML, which notebooks show in place of its text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .display import HEAD, LEGEND, ROLES, branch_text, cells_of, folded, headline, messages_text
from .plan import Plan


def plan_html(plan: Plan) -> str:
    """The same as `plan_text`, as one table and lists."""
    rows = folded(plan.params.values())
    parts = [f"<p>{escape(headline(plan))}</p>", "<table>", _row(("role", *HEAD), "th")]
    for role in ROLES:
        for names, record in rows:
            if record.role is role:
                parts.append(_row((role.value, *cells_of(names, record)), "td"))
    parts.append(f"</table>\n<p>{escape(LEGEND.partition('; why')[0])}</p>")
    parts += _section("Residual branches", (branch_text(b) for b in plan.branches), "pre")
    parts += _section("Message passing", messages_text(plan.messages))
    parts += _section("Notes", map(str, plan.notes))
    parts += _section("Warnings", map(str, plan.warnings))
    return "\n".join(parts)


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _section(title: str, lines: Iterable[str], tag: str = "span") -> list[str]:
    items = [f"<li><{tag}>{escape(line)}</{tag}></li>" for line in lines]
    return [f"<p><b>{title}</b></p>", "<ul>", *items, "</ul>"] if items else []


__all__ = ["plan_html"]
