"""The templates for targets with work-groups, in the order in which they are tried. In: nothing. Out: the list that
`choose` reads. A new template is a file in this folder that ends with its record, and a line here."""

from __future__ import annotations

from tilewright.kernel.templates.group_elements import ELEMENTWISE
from tilewright.kernel.templates.group_memory import COLUMNS, TRANSPOSE
from tilewright.kernel.templates.group_products import CONTRACTION
from tilewright.kernel.templates.group_rows import ROWS
from tilewright.kernel.templates.scatter import SCATTER
from tilewright.kernel.templates.template import Template

GROUP_TEMPLATES: tuple[Template, ...] = (
    SCATTER,
    CONTRACTION,
    ROWS,
    TRANSPOSE,
    COLUMNS,
    ELEMENTWISE,
)
