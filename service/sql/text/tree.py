"""Parse a query with sqlglot, to a tree whose nodes know their position. No other module calls sqlglot's parser for
tidefill's language.

The dialect is RisingWave's (Postgres-like), but every function stays as written. sqlglot's own function classes merge
different functions and read arguments differently. A function is therefore known by its name alone, and the allow-list
(`service.sql.expressions.functions`) is keyed by the name that the user wrote.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, cast

from sqlglot import ErrorLevel, exp
from sqlglot.dialects.risingwave import RisingWave
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.parser import Parser
from sqlglot.tokenizer_core import TokenType as SqlToken

from service.domain.errors import Invalid
from service.sql.text.tokens import Token, TokenKind, fold, syntax_error

_SYNTAX: Final = ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM")
"""Functions whose arguments have special syntax."""


_DECIMAL: Final = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?")
_UNITS: Final = ("YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND")


def _json(node: type[exp.JSONExtract | exp.JSONExtractScalar]) -> Callable[[Parser, exp.Expr, exp.Expr], exp.Expr]:
    """Return a parser for an operator that keeps the JSON key as a literal.

    Postgres's `->` takes one key, which may contain any character. It is not a path.
    """
    return lambda _, left, key: node(this=left, expression=key, only_json_types=True)


class Dialect(RisingWave):
    """RisingWave's dialect without function classes. Subscripts and JSON keys stay as written, too."""

    INDEX_OFFSET = 0

    class Tokenizer(RisingWave.Tokenizer):
        """A tokenizer that reads RLIKE and REGEXP as names of functions; sqlglot would read them as the
        operator `~`.
        """

        KEYWORDS = {  # noqa: RUF012 - sqlglot's way to configure a tokenizer
            word: token for word, token in RisingWave.Tokenizer.KEYWORDS.items() if word not in {"RLIKE", "REGEXP"}
        }

    class Parser(RisingWave.Parser):
        """A parser that keeps functions as written (see the module's docstring)."""

        FUNCTIONS = {}  # noqa: RUF012 - sqlglot's way to configure a parser
        NO_PAREN_FUNCTIONS = {}  # noqa: RUF012 - see above
        FUNCTION_PARSERS = {name: RisingWave.Parser.FUNCTION_PARSERS[name] for name in _SYNTAX}  # noqa: RUF012 - see above
        # `x -> 'key'` is JSON here and never a lambda.
        LAMBDAS = {SqlToken.FARROW: RisingWave.Parser.LAMBDAS[SqlToken.FARROW]}  # noqa: RUF012 - see above
        JSON_OPERATORS = {  # noqa: RUF012 - see above
            **RisingWave.Parser.JSON_OPERATORS,
            SqlToken.ARROW: _json(exp.JSONExtract),
            SqlToken.DARROW: _json(exp.JSONExtractScalar),
        }

        def _parse_statement(self) -> exp.Expr | None:
            # sqlglot reads `TABLE t` as a query from 30.30 on.
            return self._parse_select() if self._is_table() else super()._parse_statement()

        def _parse_select_query(self, *given: bool, **named: bool) -> exp.Expr | None:
            if not self._is_table():
                return super()._parse_select_query(*given, **named)
            self._advance()
            table = self._parse_table_parts() or self.raise_error("a table is expected")
            query = exp.select("*").from_(cast("exp.Table", table), copy=False)
            return self._parse_set_operations(self._parse_query_modifiers(query))

        def _is_table(self) -> bool:
            return self._curr.token_type is SqlToken.TABLE and self._next.token_type is not SqlToken.L_PAREN

        def _parse_interval(
            self,
            require_interval: bool = True,  # noqa: FBT001, FBT002 - sqlglot's signature
            parse_function_unit: bool = True,  # noqa: ARG002, FBT001, FBT002 - see above
        ) -> exp.Add | exp.Interval | None:
            """Read `INTERVAL 'text' [unit]` as a cast, because sqlglot loses the `02:30` of `1 day 02:30`."""
            if not require_interval or self._next.token_type is not SqlToken.STRING:
                return None
            if not self._match(SqlToken.INTERVAL):
                return None
            text = self._parse_primary()
            if not isinstance(text, exp.Literal):
                self.raise_error("an interval is one literal")
            elif self._curr.text.upper() in _UNITS:
                if not text.name.lstrip("-").isdigit():
                    self.raise_error("a unit behind an interval takes a whole number before it")
                text.set("this", f"{text.name} {self._curr.text.lower()}")
                self._advance()
            # The caller accepts any expression; the signature is narrower than its use.
            return cast("exp.Interval", self.expression(exp.Cast(this=text, to=exp.DType.INTERVAL.into_expr())))

    class Generator(RisingWave.Generator):
        """Prints what was written."""

        # `string_agg(DISTINCT s, ',')` has two arguments, and not a row of two.
        MULTI_ARG_DISTINCT = True


class Tree:
    """A parsed part of a statement: `text[start:end]`. Code outside `service.sql` must not read its nodes.

    Only the text travels between processes, and `root` parses it again. Pickling the nodes would hold Python's
    interpreter lock for longer than parsing most texts takes. `columns` are the names that a logical view gives to the
    first columns of its query.
    """

    __slots__ = ("_root", "columns", "end", "start", "text")

    def __init__(self, text: str, start: int, end: int, columns: tuple[str, ...] = ()) -> None:
        self.text, self.start, self.end, self.columns = text, start, end, columns
        self._root: exp.Expr | None = None

    @property
    def root(self) -> exp.Expr:
        """The topmost node. Raises sqlglot's errors if the text was not parsed before and cannot be parsed."""
        if self._root is None:
            parsed = Dialect().parse(self.text[self.start : self.end], error_level=ErrorLevel.IMMEDIATE)
            if len(parsed) != 1 or not isinstance(parsed[0], exp.Expr):
                raise ParseError("not one expression")
            self._root = parsed[0]
        return self._root

    def __reduce__(self) -> tuple[type["Tree"], tuple[str, int, int, tuple[str, ...]]]:
        return Tree, (self.text, self.start, self.end, self.columns)

    def with_columns(self, columns: tuple[str, ...]) -> "Tree":
        """Return the tree of the same text whose first columns have these names."""
        tree = Tree(self.text, self.start, self.end, columns)
        tree._root = self._root
        return tree

    def named(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the columns, where the query gives `names`. Raises Invalid."""
        if len(self.columns) > len(names):
            raise Invalid("too many column names were specified", position=self.start + 1)
        return (*self.columns, *names[len(self.columns) :])

    def position(self, node: exp.Expr) -> int:
        """Return the 1-based position of a node in the statement: its own, or the first one among its descendants."""
        own = _start(node)
        at: exp.Expr | None = node
        while own is None and at is not None:
            # A literal NULL, for example, has no position. The position of its parent is close enough.
            own = min((start for part in at.walk() if (start := _start(part)) is not None), default=None)
            at = at.parent
        return self.start + 1 + (own or 0)


# The exceptions that sqlglot raises on text that is not SQL.
_FAILURES: Final = (SqlglotError, ValueError, TypeError, AttributeError, LookupError, AssertionError, RecursionError)


def _refuse_windows(tokens: Sequence[Token]) -> None:
    """Refuse RisingWave's TUMBLE and HOP in FROM by name. As functions, their first argument is no column."""
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if before.is_word("from", "join") and token.is_word("tumble", "hop") and after.is_symbol("("):
            raise Invalid(
                f"{token.text.upper()} is not supported: group by date_bin(interval '10 seconds', the_time,"
                " timestamp '2000-01-01') for windows that do not overlap",
                position=token.position,
            )


def parse_tree(text: str, tokens: Sequence[Token]) -> Tree:
    """Parse the part of the statement `text` that `tokens` (an END last) cover. Raises Invalid, in Postgres's words."""
    _refuse_foreign(tokens)
    _refuse_windows(tokens)
    tree = Tree(text, tokens[0].start, tokens[-1].start)
    try:
        root = tree.root
    except RecursionError:
        raise Invalid("the statement is nested too deeply", position=tree.start + 1) from None
    except ParseError as error:
        raise syntax_error(_culprit(error, text[tree.start : tree.end], tokens)) from None
    except _FAILURES:
        raise Invalid("syntax error", position=tree.start + 1) from None
    for column in root.find_all(exp.Column):
        if not isinstance(column.this, exp.Identifier | exp.Star):
            raise Invalid("syntax error: a column's name is expected", position=tree.position(column.this))
    return tree


def identifier(node: exp.Expr | None) -> str:
    """Return the name of an identifier node, folded unless quoted. Raises Invalid for any other node."""
    if not isinstance(node, exp.Identifier):
        # sqlglot accepts other nodes as names, for example in `a.5`.
        raise Invalid("syntax error: a name is expected")
    return node.name if node.args.get("quoted") else fold(node.name)


def given(node: exp.Expr) -> frozenset[str]:
    """Return the names of the node's arguments that are set."""
    return frozenset(name for name, value in node.args.items() if value not in (None, False, []))


def _start(node: exp.Expr) -> int | None:
    start = node.meta.get("start")
    return start if isinstance(start, int) else None


def _refuse_foreign(tokens: Sequence[Token]) -> None:
    """Refuse text that sqlglot accepts and Postgres does not: a superfluous comma, operators of other languages."""
    for token, following in pairwise(tokens):
        if token.is_symbol(",", "(") and following.is_symbol(","):
            raise syntax_error(following)
        closed = following.is_symbol(")", "]") or following.kind is TokenKind.END
        if token.is_symbol(",") and (closed or following.is_word("from", "where")):
            raise syntax_error(following)
        if token.is_symbol("=") and following.is_symbol("=") and token.end == following.start:
            raise syntax_error(token)
        if token.kind is TokenKind.NUMBER and (not _DECIMAL.fullmatch(token.text) or _grown(token, following)):
            raise Invalid(f'number "{token.text}" is not supported: use decimal digits', position=token.position)


def _grown(token: Token, following: Token) -> bool:
    return token.end == following.start and following.kind is TokenKind.NAME


def _culprit(error: ParseError, covered: str, tokens: Sequence[Token]) -> Token:
    """Return the token at which sqlglot failed, as exactly as its error says."""
    first = error.errors[0] if error.errors else {}
    line, column = int(first.get("line") or 1), int(first.get("col") or 1)
    if "SENTINEL" in str(first.get("description")):
        return tokens[-1]
    starts = [0, *(found.end() for found in re.finditer(r"\n", covered))]
    # sqlglot gives the column of a token's last character.
    at = tokens[0].start + starts[min(line, len(starts)) - 1] + column - 1
    return next((token for token in tokens if token.start <= at < token.end), tokens[-1])


_CALLED: Final[Mapping[type[exp.Expr], str]] = {
    exp.Subquery: "a subquery",
    exp.Select: "a subquery",
    exp.Exists: "a subquery (EXISTS)",
    exp.Window: "a window function",
    exp.Parameter: "a parameter",
    exp.Placeholder: "a parameter",
    exp.SessionParameter: "a parameter",
    exp.RegexpLike: "a regular expression",
    exp.SimilarTo: "SIMILAR TO",
    exp.ByteString: "E'...'",
    exp.Tuple: "a row",
    exp.Star: "*",
    exp.Dot: "a qualified function",
    exp.If: "function if",
    exp.Lambda: "->",
}


def called(node: exp.Expr) -> str:
    """Return the name of a node in a message."""
    return _CALLED.get(type(node), type(node).__name__.upper())
