"""The messages of the MLCommons Chakra schema, and the one place that touches protobuf.

The schema is written out here rather than imported: the package that carries its bindings
(`mlc-chakra`) also installs plotting, notebooks and a web server, of which a trace needs nothing.
Messages live in a descriptor pool of their own, so both can be loaded in one process. Field
numbers are those of the published schema [1]; a test reads our files with its bindings.

References:
    [1] MLCommons, Chakra, schema/protobuf/et_def.proto, version 1.0.0.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

from wattree.errors import MissingExtraError

SCHEMA_VERSION = "1.0.0"  # what MLCommons' own generator writes into GlobalMetadata.version

#: What an attribute can hold.
Attribute = bool | int | float | str | bytes | list[Any]


class NodeType(IntEnum):
    """Kinds of nodes, numbered as in the schema."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7


class CollectiveType(IntEnum):
    """Kinds of collectives, numbered as in the schema."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


class Messages(NamedTuple):
    """Message classes, and the error that their parsers raise."""

    metadata: Any
    node: Any
    unknown_fields: Any
    decode_error: type[Exception]


_PACKAGE = "ChakraProtoMsg"
#: Types of attribute values in the order of their field numbers: each as scalar, then as list.
_VALUE_TYPES = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
#: (name, type, repeated) by field number from 1; a type in capitals is a message.
_MESSAGES: dict[str, tuple[tuple[str, str, bool], ...]] = {
    **{f"{kind.capitalize()}List": (("values", kind, True),) for kind in _VALUE_TYPES},
    "AttributeProto": (
        ("name", "string", False),
        ("doc_string", "string", False),
        *(
            value
            for kind in _VALUE_TYPES
            for value in (
                (f"{kind}_val", kind, False),
                (f"{kind}_list", f"{kind.capitalize()}List", False),
            )
        ),
    ),
    "IOInfo": (
        ("values", "string", False),
        ("shapes", "string", False),
        ("types", "string", False),
    ),
    "GlobalMetadata": (("version", "string", False), ("attr", "AttributeProto", True)),
    "Node": (
        ("id", "uint64", False),
        ("name", "string", False),
        ("type", "NodeType", False),
        ("ctrl_deps", "uint64", True),
        ("data_deps", "uint64", True),
        ("start_time_micros", "uint64", False),
        ("duration_micros", "uint64", False),
        ("inputs", "IOInfo", False),
        ("outputs", "IOInfo", False),
        ("attr", "AttributeProto", True),
    ),
}


@cache
def messages() -> Messages:
    """Return the message classes.

    Raises:
        MissingExtraError: Protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from google.protobuf.message import DecodeError
        from google.protobuf.unknown_fields import UnknownFieldSet
    except ImportError as error:
        raise MissingExtraError(
            needed_for="reading and writing Chakra traces", package="protobuf", extra="chakra"
        ) from error
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file(descriptor_pb2))
    node, metadata = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("Node", "GlobalMetadata")
    )
    return Messages(metadata, node, UnknownFieldSet, DecodeError)


def _file(descriptor: Any) -> Any:
    """Return the schema as protobuf describes schemas."""
    file = descriptor.FileDescriptorProto(
        name="wattree/chakra.proto", package=_PACKAGE, syntax="proto3"
    )
    enum = file.enum_type.add(name="NodeType")
    for node_type in NodeType:
        enum.value.add(name=node_type.name, number=int(node_type))
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, of_type, repeated) in enumerate(fields, start=1):
            _add_field(descriptor, message, number, field, of_type, repeated=repeated)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
            for value in message.field[2:]:
                value.oneof_index = 0
    return file


def _add_field(
    descriptor: Any, message: Any, number: int, name: str, kind: str, *, repeated: bool
) -> None:
    field = descriptor.FieldDescriptorProto
    added = message.field.add(name=name, number=number)
    added.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    if kind in _VALUE_TYPES:
        added.type = getattr(field, f"TYPE_{kind.upper()}")
    else:
        added.type = field.TYPE_ENUM if kind == "NodeType" else field.TYPE_MESSAGE
        added.type_name = f".{_PACKAGE}.{kind}"


def add_attribute(message: Any, name: str, kind: str, value: Attribute) -> None:
    """Append an attribute to a node or to the metadata.

    Args:
        kind: Field of the schema: `int64_val`, `double_list` …
    """
    attribute = message.attr.add(name=name)
    if kind.endswith("_list"):
        several = getattr(attribute, kind)
        several.SetInParent()  # an empty list is still a list
        several.values.extend(value)
    else:
        setattr(attribute, kind, value)


def attribute_value(attribute: Any) -> Attribute | None:
    """Return what an attribute holds; None if nothing."""
    kind = attribute.WhichOneof("value")
    if kind is None:
        return None
    value = getattr(attribute, kind)
    found: Attribute = list(value.values) if kind.endswith("_list") else value
    return found
