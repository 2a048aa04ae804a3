"""The templates for CPU cores, in the order in which they are tried. In: nothing. Out: the list that `choose` reads. A
new template is a file in this folder that ends with its record, and a line here."""

from __future__ import annotations

from tilewright.kernel.templates.convolutions import CONVOLUTION
from tilewright.kernel.templates.joins import JOIN
from tilewright.kernel.templates.products import CONTRACTION
from tilewright.kernel.templates.scans import SCAN
from tilewright.kernel.templates.scatter import SCATTER
from tilewright.kernel.templates.template import Template
from tilewright.kernel.templates.vectors import COLUMNS, ELEMENTWISE, INTERLEAVED, ROWS, SELECTED, TRANSPOSE

CORE_TEMPLATES: tuple[Template, ...] = (
    SCAN,
    SCATTER,
    CONVOLUTION,
    CONTRACTION,
    INTERLEAVED,
    SELECTED,
    JOIN,
    COLUMNS,
    ELEMENTWISE,
    TRANSPOSE,
    ROWS,
)
