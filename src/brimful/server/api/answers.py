"""The API's envelope, and the answers' shapes for the OpenAPI description.

Views return plain dicts and answers are not validated against these shapes at run time; the tests check each
answer against its shape, where an extra field is as wrong as a missing one.
"""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pydantic import BaseModel, ConfigDict, Field, create_model

T = TypeVar("T")


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Ok(Shape, Generic[T]):
    ok: Literal[True]
    data: T


class Problem(Shape):
    code: str
    problem: str
    hint: str
    reason: Annotated[dict[str, Any], Field(description="code and values of `problem`, for programs")]


class Failed(Shape):
    ok: Literal[False]
    error: Problem


def envelope(answer: type) -> Any:  # noqa: ANN401 - a type, made here
    """The shape of an answer with this TypedDict as its `data`."""
    return Ok[shape_of(answer)]  # type: ignore[misc]


@cache
def shape_of(answer: type) -> type[Shape]:
    """The same fields as a model: nothing missing, nothing added."""
    hints = get_type_hints(answer, include_extras=True)
    fields: dict[str, Any] = {name: (_shaped(hint), ...) for name, hint in hints.items()}
    return create_model(answer.__name__, __base__=Shape, __doc__=answer.__doc__, **fields)


def _shaped(hint: Any) -> Any:  # noqa: ANN401 - any annotation
    if is_typeddict(hint):
        return shape_of(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[_shaped(args[0]), Field(description=args[1])]
    if origin is UnionType:
        return reduce(or_, map(_shaped, args))
    return origin[tuple(map(_shaped, args))] if origin else hint
