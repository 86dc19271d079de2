"""A plan as HTML, which notebooks show in place of its text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .audit import HEAD as AUDIT_HEAD
from .audit import Audit, summary
from .audit import cells_of as cells_of_audit
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
    parts += [] if plan.audit is None else _audit(plan.audit)
    return "\n".join(parts)


def _audit(audit: Audit) -> list[str]:
    """The table of the audit, folded away, and what there is to say of it."""
    rows = [_row(("tensor or expression", "quantity", *AUDIT_HEAD), "th")]
    rows += [_row(cells_of_audit(row), "td") for row in audit.rows]
    lines = [f"<p>{escape(line)}</p>" for line in summary(audit)]
    return ["<details><summary>Audit</summary>", "<table>", *rows, "</table>", *lines, "</details>"]


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _section(title: str, lines: Iterable[str], tag: str = "span") -> list[str]:
    items = [f"<li><{tag}>{escape(line)}</{tag}></li>" for line in lines]
    return [f"<p><b>{title}</b></p>", "<ul>", *items, "</ul>"] if items else []


__all__ = ["plan_html"]
