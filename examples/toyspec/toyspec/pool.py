"""Slots for what branches of a draft compute: a row for each request, its branches side by side."""


def width(page, topk):
    """Slots of a row: a page for each branch."""
    return page * topk


class Row:
    """The row of one request. Branch ``b`` writes step ``i`` at ``b * page + i``."""

    def __init__(self, page, topk):
        self.page = page
        self.slots = [None] * width(page, topk)

    def write(self, branch, step, token):
        at = branch * self.page + step
        if at >= len(self.slots):
            raise RuntimeError(f"row too narrow: slot {at} of {len(self.slots)}")
        self.slots[at] = token

    def read(self, branch, steps):
        return self.slots[branch * self.page : branch * self.page + steps]
