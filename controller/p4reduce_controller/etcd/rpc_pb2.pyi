from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResponseHeader(_message.Message):
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class KeyValue(_message.Message):
    key: bytes
    create_revision: int
    mod_revision: int
    value: bytes
    lease: int
    def __init__(self, key: _Optional[bytes] = ..., create_revision: _Optional[int] = ..., mod_revision: _Optional[int] = ..., value: _Optional[bytes] = ..., lease: _Optional[int] = ...) -> None: ...

class RangeRequest(_message.Message):
    key: bytes
    range_end: bytes
    def __init__(self, key: _Optional[bytes] = ..., range_end: _Optional[bytes] = ...) -> None: ...

class RangeResponse(_message.Message):
    header: ResponseHeader
    kvs: _containers.RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., kvs: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ...) -> None: ...

class PutRequest(_message.Message):
    key: bytes
    value: bytes
    lease: int
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., lease: _Optional[int] = ...) -> None: ...

class DeleteRangeRequest(_message.Message):
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...

class RequestOp(_message.Message):
    request_range: RangeRequest
    request_put: PutRequest
    request_delete_range: DeleteRangeRequest
    def __init__(self, request_range: _Optional[_Union[RangeRequest, _Mapping]] = ..., request_put: _Optional[_Union[PutRequest, _Mapping]] = ..., request_delete_range: _Optional[_Union[DeleteRangeRequest, _Mapping]] = ...) -> None: ...

class ResponseOp(_message.Message):
    response_range: RangeResponse
    def __init__(self, response_range: _Optional[_Union[RangeResponse, _Mapping]] = ...) -> None: ...

class Compare(_message.Message):
    class Result(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        EQUAL: _ClassVar[Compare.Result]
    EQUAL: Compare.Result
    class Target(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        VERSION: _ClassVar[Compare.Target]
        CREATE: _ClassVar[Compare.Target]
        MOD: _ClassVar[Compare.Target]
    VERSION: Compare.Target
    CREATE: Compare.Target
    MOD: Compare.Target
    result: Compare.Result
    target: Compare.Target
    key: bytes
    create_revision: int
    mod_revision: int
    def __init__(self, result: _Optional[_Union[Compare.Result, str]] = ..., target: _Optional[_Union[Compare.Target, str]] = ..., key: _Optional[bytes] = ..., create_revision: _Optional[int] = ..., mod_revision: _Optional[int] = ...) -> None: ...

class TxnRequest(_message.Message):
    compare: _containers.RepeatedCompositeFieldContainer[Compare]
    success: _containers.RepeatedCompositeFieldContainer[RequestOp]
    failure: _containers.RepeatedCompositeFieldContainer[RequestOp]
    def __init__(self, compare: _Optional[_Iterable[_Union[Compare, _Mapping]]] = ..., success: _Optional[_Iterable[_Union[RequestOp, _Mapping]]] = ..., failure: _Optional[_Iterable[_Union[RequestOp, _Mapping]]] = ...) -> None: ...

class TxnResponse(_message.Message):
    header: ResponseHeader
    succeeded: bool
    responses: _containers.RepeatedCompositeFieldContainer[ResponseOp]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., succeeded: bool = ..., responses: _Optional[_Iterable[_Union[ResponseOp, _Mapping]]] = ...) -> None: ...

class LeaseGrantRequest(_message.Message):
    TTL: int
    def __init__(self, TTL: _Optional[int] = ...) -> None: ...

class LeaseGrantResponse(_message.Message):
    header: ResponseHeader
    ID: int
    TTL: int
    error: str
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., ID: _Optional[int] = ..., TTL: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class LeaseRevokeRequest(_message.Message):
    ID: int
    def __init__(self, ID: _Optional[int] = ...) -> None: ...

class LeaseRevokeResponse(_message.Message):
    def __init__(self) -> None: ...

class LeaseKeepAliveRequest(_message.Message):
    ID: int
    def __init__(self, ID: _Optional[int] = ...) -> None: ...

class LeaseKeepAliveResponse(_message.Message):
    ID: int
    TTL: int
    def __init__(self, ID: _Optional[int] = ..., TTL: _Optional[int] = ...) -> None: ...
