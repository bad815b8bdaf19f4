"""Command lines of earlier versions, which keep their meaning."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class OldJson(TyperCommand):
    """A command whose ``--json`` once took ``FILE|-``. It is a flag now, and ``--json-file`` takes the file.

    ``--json -`` and ``--json=FILE`` are taken for what they meant. ``--json WORD`` means the file WORD if the line says
    without that word what it is about, as it then did before; else WORD is what it is about.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put old words into new ones, parse those."""
        return super().parse_args(ctx, args if ctx.resilient_parsing else self._in_new_words(ctx, args))

    def has_subject(self, ctx: Any, words: list[str]) -> bool:
        """Return True if the line has all of the command's arguments."""
        values, _, _ = self.make_parser(ctx).parse_args(list(words))
        arguments = [param.name for param in self.params if param.param_type_name == "argument"]
        return all(isinstance(values.get(name), str) for name in arguments)

    def _in_new_words(self, ctx: Any, args: list[str]) -> list[str]:
        words: list[str] = []
        left = list(args)
        while left:
            word = left.pop(0)
            value: str | None = None
            if word.startswith("--json="):
                value = word.removeprefix("--json=")
            elif word != "--json":
                words.append(word)
                continue
            elif left and (left[0] == "-" or not left[0].startswith("-")):
                with_file = [*words, "--json-file", *left]
                if left[0] == "-" or self.has_subject(ctx, with_file):
                    value = left.pop(0)
            words += ["--json"] if value in (None, "-") else ["--json-file", str(value)]
        return words
