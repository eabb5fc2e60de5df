from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SetForwardingPipelineConfigResponseType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    WARM_INIT_STARTED: _ClassVar[SetForwardingPipelineConfigResponseType]
    WARM_INIT_FINISHED: _ClassVar[SetForwardingPipelineConfigResponseType]
WARM_INIT_STARTED: SetForwardingPipelineConfigResponseType
WARM_INIT_FINISHED: SetForwardingPipelineConfigResponseType

class WriteRequest(_message.Message):
    class Atomicity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        CONTINUE_ON_ERROR: _ClassVar[WriteRequest.Atomicity]
        ROLLBACK_ON_ERROR: _ClassVar[WriteRequest.Atomicity]
        DATAPLANE_ATOMIC: _ClassVar[WriteRequest.Atomicity]
    CONTINUE_ON_ERROR: WriteRequest.Atomicity
    ROLLBACK_ON_ERROR: WriteRequest.Atomicity
    DATAPLANE_ATOMIC: WriteRequest.Atomicity
    target: TargetDevice
    client_id: int
    updates: _containers.RepeatedCompositeFieldContainer[Update]
    atomicity: WriteRequest.Atomicity
    p4_name: str
    def __init__(self, target: _Optional[_Union[TargetDevice, _Mapping]] = ..., client_id: _Optional[int] = ..., updates: _Optional[_Iterable[_Union[Update, _Mapping]]] = ..., atomicity: _Optional[_Union[WriteRequest.Atomicity, str]] = ..., p4_name: _Optional[str] = ...) -> None: ...

class WriteResponse(_message.Message):
    status: _containers.RepeatedCompositeFieldContainer[Error]
    def __init__(self, status: _Optional[_Iterable[_Union[Error, _Mapping]]] = ...) -> None: ...

class ReadRequest(_message.Message):
    target: TargetDevice
    client_id: int
    entities: _containers.RepeatedCompositeFieldContainer[Entity]
    p4_name: str
    def __init__(self, target: _Optional[_Union[TargetDevice, _Mapping]] = ..., client_id: _Optional[int] = ..., entities: _Optional[_Iterable[_Union[Entity, _Mapping]]] = ..., p4_name: _Optional[str] = ...) -> None: ...

class ReadResponse(_message.Message):
    entities: _containers.RepeatedCompositeFieldContainer[Entity]
    status: _containers.RepeatedCompositeFieldContainer[Error]
    def __init__(self, entities: _Optional[_Iterable[_Union[Entity, _Mapping]]] = ..., status: _Optional[_Iterable[_Union[Error, _Mapping]]] = ...) -> None: ...

class TargetDevice(_message.Message):
    device_id: int
    pipe_id: int
    direction: int
    prsr_id: int
    def __init__(self, device_id: _Optional[int] = ..., pipe_id: _Optional[int] = ..., direction: _Optional[int] = ..., prsr_id: _Optional[int] = ...) -> None: ...

class Update(_message.Message):
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        UNSPECIFIED: _ClassVar[Update.Type]
        INSERT: _ClassVar[Update.Type]
        MODIFY: _ClassVar[Update.Type]
        MODIFY_INC: _ClassVar[Update.Type]
        DELETE: _ClassVar[Update.Type]
        INSERT_OR_MODIFY: _ClassVar[Update.Type]
        RESET: _ClassVar[Update.Type]
    UNSPECIFIED: Update.Type
    INSERT: Update.Type
    MODIFY: Update.Type
    MODIFY_INC: Update.Type
    DELETE: Update.Type
    INSERT_OR_MODIFY: Update.Type
    RESET: Update.Type
    type: Update.Type
    entity: Entity
    def __init__(self, type: _Optional[_Union[Update.Type, str]] = ..., entity: _Optional[_Union[Entity, _Mapping]] = ...) -> None: ...

class Entity(_message.Message):
    table_entry: TableEntry
    table_operation: TableOperation
    def __init__(self, table_entry: _Optional[_Union[TableEntry, _Mapping]] = ..., table_operation: _Optional[_Union[TableOperation, _Mapping]] = ...) -> None: ...

class TableEntry(_message.Message):
    table_id: int
    key: TableKey
    data: TableData
    is_default_entry: bool
    entry_tgt: TargetDevice
    table_flags: TableFlags
    def __init__(self, table_id: _Optional[int] = ..., key: _Optional[_Union[TableKey, _Mapping]] = ..., data: _Optional[_Union[TableData, _Mapping]] = ..., is_default_entry: bool = ..., entry_tgt: _Optional[_Union[TargetDevice, _Mapping]] = ..., table_flags: _Optional[_Union[TableFlags, _Mapping]] = ...) -> None: ...

class TableFlags(_message.Message):
    from_hw: bool
    key_only: bool
    mod_del: bool
    reset_ttl: bool
    reset_stats: bool
    def __init__(self, from_hw: bool = ..., key_only: bool = ..., mod_del: bool = ..., reset_ttl: bool = ..., reset_stats: bool = ...) -> None: ...

class TableOperation(_message.Message):
    table_id: int
    table_operations_type: str
    def __init__(self, table_id: _Optional[int] = ..., table_operations_type: _Optional[str] = ...) -> None: ...

class TableKey(_message.Message):
    fields: _containers.RepeatedCompositeFieldContainer[KeyField]
    def __init__(self, fields: _Optional[_Iterable[_Union[KeyField, _Mapping]]] = ...) -> None: ...

class KeyField(_message.Message):
    class Exact(_message.Message):
        value: bytes
        def __init__(self, value: _Optional[bytes] = ...) -> None: ...
    class Ternary(_message.Message):
        value: bytes
        mask: bytes
        def __init__(self, value: _Optional[bytes] = ..., mask: _Optional[bytes] = ...) -> None: ...
    class LPM(_message.Message):
        value: bytes
        prefix_len: int
        def __init__(self, value: _Optional[bytes] = ..., prefix_len: _Optional[int] = ...) -> None: ...
    class Range(_message.Message):
        low: bytes
        high: bytes
        def __init__(self, low: _Optional[bytes] = ..., high: _Optional[bytes] = ...) -> None: ...
    class Optional(_message.Message):
        value: bytes
        is_valid: bool
        def __init__(self, value: _Optional[bytes] = ..., is_valid: bool = ...) -> None: ...
    field_id: int
    exact: KeyField.Exact
    ternary: KeyField.Ternary
    lpm: KeyField.LPM
    range: KeyField.Range
    optional: KeyField.Optional
    def __init__(self, field_id: _Optional[int] = ..., exact: _Optional[_Union[KeyField.Exact, _Mapping]] = ..., ternary: _Optional[_Union[KeyField.Ternary, _Mapping]] = ..., lpm: _Optional[_Union[KeyField.LPM, _Mapping]] = ..., range: _Optional[_Union[KeyField.Range, _Mapping]] = ..., optional: _Optional[_Union[KeyField.Optional, _Mapping]] = ...) -> None: ...

class TableData(_message.Message):
    action_id: int
    fields: _containers.RepeatedCompositeFieldContainer[DataField]
    def __init__(self, action_id: _Optional[int] = ..., fields: _Optional[_Iterable[_Union[DataField, _Mapping]]] = ...) -> None: ...

class DataField(_message.Message):
    class IntArray(_message.Message):
        val: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, val: _Optional[_Iterable[int]] = ...) -> None: ...
    class BoolArray(_message.Message):
        val: _containers.RepeatedScalarFieldContainer[bool]
        def __init__(self, val: _Optional[_Iterable[bool]] = ...) -> None: ...
    class StrArray(_message.Message):
        val: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, val: _Optional[_Iterable[str]] = ...) -> None: ...
    field_id: int
    stream: bytes
    float_val: float
    str_val: str
    int_arr_val: DataField.IntArray
    bool_arr_val: DataField.BoolArray
    bool_val: bool
    str_arr_val: DataField.StrArray
    def __init__(self, field_id: _Optional[int] = ..., stream: _Optional[bytes] = ..., float_val: _Optional[float] = ..., str_val: _Optional[str] = ..., int_arr_val: _Optional[_Union[DataField.IntArray, _Mapping]] = ..., bool_arr_val: _Optional[_Union[DataField.BoolArray, _Mapping]] = ..., bool_val: bool = ..., str_arr_val: _Optional[_Union[DataField.StrArray, _Mapping]] = ...) -> None: ...

class StreamMessageRequest(_message.Message):
    client_id: int
    subscribe: Subscribe
    def __init__(self, client_id: _Optional[int] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ...) -> None: ...

class Subscribe(_message.Message):
    class Notifications(_message.Message):
        enable_learn_notifications: bool
        enable_idletimeout_notifications: bool
        enable_port_status_change_notifications: bool
        enable_entry_active_notifications: bool
        enable_selector_update_change_notifications: bool
        def __init__(self, enable_learn_notifications: bool = ..., enable_idletimeout_notifications: bool = ..., enable_port_status_change_notifications: bool = ..., enable_entry_active_notifications: bool = ..., enable_selector_update_change_notifications: bool = ...) -> None: ...
    device_id: int
    notifications: Subscribe.Notifications
    status: Status
    def __init__(self, device_id: _Optional[int] = ..., notifications: _Optional[_Union[Subscribe.Notifications, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...

class StreamMessageResponse(_message.Message):
    subscribe: Subscribe
    set_forwarding_pipeline_config_response: SetForwardingPipelineConfigResponse
    def __init__(self, subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., set_forwarding_pipeline_config_response: _Optional[_Union[SetForwardingPipelineConfigResponse, _Mapping]] = ...) -> None: ...

class SetForwardingPipelineConfigRequest(_message.Message):
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        BIND: _ClassVar[SetForwardingPipelineConfigRequest.Action]
        VERIFY: _ClassVar[SetForwardingPipelineConfigRequest.Action]
        VERIFY_AND_WARM_INIT_BEGIN: _ClassVar[SetForwardingPipelineConfigRequest.Action]
        VERIFY_AND_WARM_INIT_BEGIN_AND_END: _ClassVar[SetForwardingPipelineConfigRequest.Action]
        WARM_INIT_END: _ClassVar[SetForwardingPipelineConfigRequest.Action]
        RECONCILE_AND_WARM_INIT_END: _ClassVar[SetForwardingPipelineConfigRequest.Action]
    BIND: SetForwardingPipelineConfigRequest.Action
    VERIFY: SetForwardingPipelineConfigRequest.Action
    VERIFY_AND_WARM_INIT_BEGIN: SetForwardingPipelineConfigRequest.Action
    VERIFY_AND_WARM_INIT_BEGIN_AND_END: SetForwardingPipelineConfigRequest.Action
    WARM_INIT_END: SetForwardingPipelineConfigRequest.Action
    RECONCILE_AND_WARM_INIT_END: SetForwardingPipelineConfigRequest.Action
    class DevInitMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        FAST_RECONFIG: _ClassVar[SetForwardingPipelineConfigRequest.DevInitMode]
        HITLESS: _ClassVar[SetForwardingPipelineConfigRequest.DevInitMode]
    FAST_RECONFIG: SetForwardingPipelineConfigRequest.DevInitMode
    HITLESS: SetForwardingPipelineConfigRequest.DevInitMode
    device_id: int
    client_id: int
    action: SetForwardingPipelineConfigRequest.Action
    dev_init_mode: SetForwardingPipelineConfigRequest.DevInitMode
    base_path: str
    config: _containers.RepeatedCompositeFieldContainer[ForwardingPipelineConfig]
    def __init__(self, device_id: _Optional[int] = ..., client_id: _Optional[int] = ..., action: _Optional[_Union[SetForwardingPipelineConfigRequest.Action, str]] = ..., dev_init_mode: _Optional[_Union[SetForwardingPipelineConfigRequest.DevInitMode, str]] = ..., base_path: _Optional[str] = ..., config: _Optional[_Iterable[_Union[ForwardingPipelineConfig, _Mapping]]] = ...) -> None: ...

class SetForwardingPipelineConfigResponse(_message.Message):
    set_forwarding_pipeline_config_response_type: SetForwardingPipelineConfigResponseType
    def __init__(self, set_forwarding_pipeline_config_response_type: _Optional[_Union[SetForwardingPipelineConfigResponseType, str]] = ...) -> None: ...

class ForwardingPipelineConfig(_message.Message):
    class Profile(_message.Message):
        profile_name: str
        context: bytes
        binary: bytes
        pipe_scope: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, profile_name: _Optional[str] = ..., context: _Optional[bytes] = ..., binary: _Optional[bytes] = ..., pipe_scope: _Optional[_Iterable[int]] = ...) -> None: ...
    p4_name: str
    bfruntime_info: bytes
    profiles: _containers.RepeatedCompositeFieldContainer[ForwardingPipelineConfig.Profile]
    def __init__(self, p4_name: _Optional[str] = ..., bfruntime_info: _Optional[bytes] = ..., profiles: _Optional[_Iterable[_Union[ForwardingPipelineConfig.Profile, _Mapping]]] = ...) -> None: ...

class NonP4Config(_message.Message):
    bfruntime_info: bytes
    def __init__(self, bfruntime_info: _Optional[bytes] = ...) -> None: ...

class GetForwardingPipelineConfigRequest(_message.Message):
    device_id: int
    client_id: int
    def __init__(self, device_id: _Optional[int] = ..., client_id: _Optional[int] = ...) -> None: ...

class GetForwardingPipelineConfigResponse(_message.Message):
    config: _containers.RepeatedCompositeFieldContainer[ForwardingPipelineConfig]
    non_p4_config: NonP4Config
    def __init__(self, config: _Optional[_Iterable[_Union[ForwardingPipelineConfig, _Mapping]]] = ..., non_p4_config: _Optional[_Union[NonP4Config, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    canonical_code: int
    message: str
    space: str
    code: int
    def __init__(self, canonical_code: _Optional[int] = ..., message: _Optional[str] = ..., space: _Optional[str] = ..., code: _Optional[int] = ...) -> None: ...

class Status(_message.Message):
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[Detail]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[Detail, _Mapping]]] = ...) -> None: ...

class Detail(_message.Message):
    type_url: str
    value: bytes
    def __init__(self, type_url: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
