from google.protobuf import any_pb2 as _any_pb2
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
    table_usage: TableUsage
    table_attribute: TableAttribute
    table_operation: TableOperation
    object_id: ObjectId
    handle: HandleId
    def __init__(self, table_entry: _Optional[_Union[TableEntry, _Mapping]] = ..., table_usage: _Optional[_Union[TableUsage, _Mapping]] = ..., table_attribute: _Optional[_Union[TableAttribute, _Mapping]] = ..., table_operation: _Optional[_Union[TableOperation, _Mapping]] = ..., object_id: _Optional[_Union[ObjectId, _Mapping]] = ..., handle: _Optional[_Union[HandleId, _Mapping]] = ...) -> None: ...

class HandleId(_message.Message):
    table_id: int
    key: TableKey
    handle_id: int
    def __init__(self, table_id: _Optional[int] = ..., key: _Optional[_Union[TableKey, _Mapping]] = ..., handle_id: _Optional[int] = ...) -> None: ...

class TableEntry(_message.Message):
    table_id: int
    key: TableKey
    handle_id: int
    data: TableData
    is_default_entry: bool
    table_read_flag: TableReadFlag
    table_mod_inc_flag: TableModIncFlag
    entry_tgt: TargetDevice
    table_flags: TableFlags
    def __init__(self, table_id: _Optional[int] = ..., key: _Optional[_Union[TableKey, _Mapping]] = ..., handle_id: _Optional[int] = ..., data: _Optional[_Union[TableData, _Mapping]] = ..., is_default_entry: bool = ..., table_read_flag: _Optional[_Union[TableReadFlag, _Mapping]] = ..., table_mod_inc_flag: _Optional[_Union[TableModIncFlag, _Mapping]] = ..., entry_tgt: _Optional[_Union[TargetDevice, _Mapping]] = ..., table_flags: _Optional[_Union[TableFlags, _Mapping]] = ...) -> None: ...

class TableUsage(_message.Message):
    table_id: int
    usage: int
    table_read_flag: TableReadFlag
    table_flags: TableFlags
    def __init__(self, table_id: _Optional[int] = ..., usage: _Optional[int] = ..., table_read_flag: _Optional[_Union[TableReadFlag, _Mapping]] = ..., table_flags: _Optional[_Union[TableFlags, _Mapping]] = ...) -> None: ...

class TableAttribute(_message.Message):
    table_id: int
    idle_table: IdleTable
    entry_scope: EntryScope
    dyn_key_mask: DynKeyMask
    dyn_hashing: DynHashing
    byte_count_adj: ByteCountAdj
    port_status_notify: PortStatusChg
    intvl_ms: StatePullIntvl
    pre_device_config: PreDeviceConfig
    selector_update_notify: SelectorUpdateCb
    def __init__(self, table_id: _Optional[int] = ..., idle_table: _Optional[_Union[IdleTable, _Mapping]] = ..., entry_scope: _Optional[_Union[EntryScope, _Mapping]] = ..., dyn_key_mask: _Optional[_Union[DynKeyMask, _Mapping]] = ..., dyn_hashing: _Optional[_Union[DynHashing, _Mapping]] = ..., byte_count_adj: _Optional[_Union[ByteCountAdj, _Mapping]] = ..., port_status_notify: _Optional[_Union[PortStatusChg, _Mapping]] = ..., intvl_ms: _Optional[_Union[StatePullIntvl, _Mapping]] = ..., pre_device_config: _Optional[_Union[PreDeviceConfig, _Mapping]] = ..., selector_update_notify: _Optional[_Union[SelectorUpdateCb, _Mapping]] = ...) -> None: ...

class TableOperation(_message.Message):
    table_id: int
    table_operations_type: str
    def __init__(self, table_id: _Optional[int] = ..., table_operations_type: _Optional[str] = ...) -> None: ...

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
    class ContainerArray(_message.Message):
        class Container(_message.Message):
            val: _containers.RepeatedCompositeFieldContainer[DataField]
            def __init__(self, val: _Optional[_Iterable[_Union[DataField, _Mapping]]] = ...) -> None: ...
        container: _containers.RepeatedCompositeFieldContainer[DataField.ContainerArray.Container]
        def __init__(self, container: _Optional[_Iterable[_Union[DataField.ContainerArray.Container, _Mapping]]] = ...) -> None: ...
    field_id: int
    stream: bytes
    float_val: float
    str_val: str
    int_arr_val: DataField.IntArray
    bool_arr_val: DataField.BoolArray
    container_arr_val: DataField.ContainerArray
    bool_val: bool
    str_arr_val: DataField.StrArray
    def __init__(self, field_id: _Optional[int] = ..., stream: _Optional[bytes] = ..., float_val: _Optional[float] = ..., str_val: _Optional[str] = ..., int_arr_val: _Optional[_Union[DataField.IntArray, _Mapping]] = ..., bool_arr_val: _Optional[_Union[DataField.BoolArray, _Mapping]] = ..., container_arr_val: _Optional[_Union[DataField.ContainerArray, _Mapping]] = ..., bool_val: bool = ..., str_arr_val: _Optional[_Union[DataField.StrArray, _Mapping]] = ...) -> None: ...

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

class TableReadFlag(_message.Message):
    from_hw: bool
    key_only: bool
    def __init__(self, from_hw: bool = ..., key_only: bool = ...) -> None: ...

class TableFlags(_message.Message):
    from_hw: bool
    key_only: bool
    mod_del: bool
    reset_ttl: bool
    reset_stats: bool
    def __init__(self, from_hw: bool = ..., key_only: bool = ..., mod_del: bool = ..., reset_ttl: bool = ..., reset_stats: bool = ...) -> None: ...

class TableModIncFlag(_message.Message):
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        MOD_INC_ADD: _ClassVar[TableModIncFlag.Type]
        MOD_INC_DELETE: _ClassVar[TableModIncFlag.Type]
    MOD_INC_ADD: TableModIncFlag.Type
    MOD_INC_DELETE: TableModIncFlag.Type
    type: TableModIncFlag.Type
    def __init__(self, type: _Optional[_Union[TableModIncFlag.Type, str]] = ...) -> None: ...

class KeyFieldMask(_message.Message):
    field_id: int
    mask: bytes
    def __init__(self, field_id: _Optional[int] = ..., mask: _Optional[bytes] = ...) -> None: ...

class DynKeyMask(_message.Message):
    fields: _containers.RepeatedCompositeFieldContainer[KeyFieldMask]
    def __init__(self, fields: _Optional[_Iterable[_Union[KeyFieldMask, _Mapping]]] = ...) -> None: ...

class DynHashing(_message.Message):
    alg: int
    seed: int
    def __init__(self, alg: _Optional[int] = ..., seed: _Optional[int] = ...) -> None: ...

class ByteCountAdj(_message.Message):
    byte_count_adjust: int
    def __init__(self, byte_count_adjust: _Optional[int] = ...) -> None: ...

class IdleTable(_message.Message):
    class IdleTableMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        IDLE_TABLE_POLL_MODE: _ClassVar[IdleTable.IdleTableMode]
        IDLE_TABLE_NOTIFY_MODE: _ClassVar[IdleTable.IdleTableMode]
    IDLE_TABLE_POLL_MODE: IdleTable.IdleTableMode
    IDLE_TABLE_NOTIFY_MODE: IdleTable.IdleTableMode
    ttl_query_interval: int
    max_ttl: int
    min_ttl: int
    idle_table_mode: IdleTable.IdleTableMode
    enable: bool
    def __init__(self, ttl_query_interval: _Optional[int] = ..., max_ttl: _Optional[int] = ..., min_ttl: _Optional[int] = ..., idle_table_mode: _Optional[_Union[IdleTable.IdleTableMode, str]] = ..., enable: bool = ...) -> None: ...

class StatePullIntvl(_message.Message):
    intvl_val: int
    def __init__(self, intvl_val: _Optional[int] = ...) -> None: ...

class PortStatusChg(_message.Message):
    enable: bool
    def __init__(self, enable: bool = ...) -> None: ...

class SelectorUpdateCb(_message.Message):
    enable: bool
    def __init__(self, enable: bool = ...) -> None: ...

class Mode(_message.Message):
    class PredefinedMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        ALL: _ClassVar[Mode.PredefinedMode]
        SINGLE: _ClassVar[Mode.PredefinedMode]
    ALL: Mode.PredefinedMode
    SINGLE: Mode.PredefinedMode
    predef: Mode.PredefinedMode
    user_defined: int
    args: int
    def __init__(self, predef: _Optional[_Union[Mode.PredefinedMode, str]] = ..., user_defined: _Optional[int] = ..., args: _Optional[int] = ...) -> None: ...

class PreGlobalRid(_message.Message):
    global_rid: int
    def __init__(self, global_rid: _Optional[int] = ...) -> None: ...

class PrePortProtection(_message.Message):
    enable: bool
    def __init__(self, enable: bool = ...) -> None: ...

class PreFastFailover(_message.Message):
    enable: bool
    def __init__(self, enable: bool = ...) -> None: ...

class PreMaxNodesBeforeYield(_message.Message):
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class PreMaxNodeThreshold(_message.Message):
    node_count: int
    port_lag_count: int
    def __init__(self, node_count: _Optional[int] = ..., port_lag_count: _Optional[int] = ...) -> None: ...

class PreDeviceConfig(_message.Message):
    pre_global_rid: PreGlobalRid
    pre_port_protection: PrePortProtection
    pre_fast_failover: PreFastFailover
    pre_max_nodes_before_yield: PreMaxNodesBeforeYield
    pre_max_node_threshold: PreMaxNodeThreshold
    def __init__(self, pre_global_rid: _Optional[_Union[PreGlobalRid, _Mapping]] = ..., pre_port_protection: _Optional[_Union[PrePortProtection, _Mapping]] = ..., pre_fast_failover: _Optional[_Union[PreFastFailover, _Mapping]] = ..., pre_max_nodes_before_yield: _Optional[_Union[PreMaxNodesBeforeYield, _Mapping]] = ..., pre_max_node_threshold: _Optional[_Union[PreMaxNodeThreshold, _Mapping]] = ...) -> None: ...

class EntryScope(_message.Message):
    gress_scope: Mode
    pipe_scope: Mode
    prsr_scope: Mode
    def __init__(self, gress_scope: _Optional[_Union[Mode, _Mapping]] = ..., pipe_scope: _Optional[_Union[Mode, _Mapping]] = ..., prsr_scope: _Optional[_Union[Mode, _Mapping]] = ...) -> None: ...

class ObjectId(_message.Message):
    class ActionName(_message.Message):
        action: str
        def __init__(self, action: _Optional[str] = ...) -> None: ...
    class KeyFieldName(_message.Message):
        field: str
        def __init__(self, field: _Optional[str] = ...) -> None: ...
    class DataFieldName(_message.Message):
        action: str
        field: str
        def __init__(self, action: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...
    class TableObject(_message.Message):
        table_name: str
        action_name: ObjectId.ActionName
        key_field_name: ObjectId.KeyFieldName
        data_field_name: ObjectId.DataFieldName
        def __init__(self, table_name: _Optional[str] = ..., action_name: _Optional[_Union[ObjectId.ActionName, _Mapping]] = ..., key_field_name: _Optional[_Union[ObjectId.KeyFieldName, _Mapping]] = ..., data_field_name: _Optional[_Union[ObjectId.DataFieldName, _Mapping]] = ...) -> None: ...
    class LearnObject(_message.Message):
        learn_name: str
        data_field_name: ObjectId.DataFieldName
        def __init__(self, learn_name: _Optional[str] = ..., data_field_name: _Optional[_Union[ObjectId.DataFieldName, _Mapping]] = ...) -> None: ...
    table_object: ObjectId.TableObject
    learn_object: ObjectId.LearnObject
    id: int
    def __init__(self, table_object: _Optional[_Union[ObjectId.TableObject, _Mapping]] = ..., learn_object: _Optional[_Union[ObjectId.LearnObject, _Mapping]] = ..., id: _Optional[int] = ...) -> None: ...

class StreamMessageRequest(_message.Message):
    client_id: int
    subscribe: Subscribe
    digest_ack: DigestListAck
    def __init__(self, client_id: _Optional[int] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., digest_ack: _Optional[_Union[DigestListAck, _Mapping]] = ...) -> None: ...

class Subscribe(_message.Message):
    class Notifications(_message.Message):
        enable_learn_notifications: bool
        enable_idletimeout_notifications: bool
        enable_port_status_change_notifications: bool
        enable_entry_active_notifications: bool
        enable_selector_update_change_notifications: bool
        def __init__(self, enable_learn_notifications: bool = ..., enable_idletimeout_notifications: bool = ..., enable_port_status_change_notifications: bool = ..., enable_entry_active_notifications: bool = ..., enable_selector_update_change_notifications: bool = ...) -> None: ...
    is_master: bool
    device_id: int
    notifications: Subscribe.Notifications
    status: Status
    def __init__(self, is_master: bool = ..., device_id: _Optional[int] = ..., notifications: _Optional[_Union[Subscribe.Notifications, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...

class DigestListAck(_message.Message):
    digest_id: int
    list_id: int
    def __init__(self, digest_id: _Optional[int] = ..., list_id: _Optional[int] = ...) -> None: ...

class StreamMessageResponse(_message.Message):
    subscribe: Subscribe
    digest: DigestList
    idle_timeout_notification: IdleTimeoutNotification
    port_status_change_notification: PortStatusChgNotification
    set_forwarding_pipeline_config_response: SetForwardingPipelineConfigResponse
    selector_update_change_notification: SelectorUpdateChgNotification
    def __init__(self, subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., digest: _Optional[_Union[DigestList, _Mapping]] = ..., idle_timeout_notification: _Optional[_Union[IdleTimeoutNotification, _Mapping]] = ..., port_status_change_notification: _Optional[_Union[PortStatusChgNotification, _Mapping]] = ..., set_forwarding_pipeline_config_response: _Optional[_Union[SetForwardingPipelineConfigResponse, _Mapping]] = ..., selector_update_change_notification: _Optional[_Union[SelectorUpdateChgNotification, _Mapping]] = ...) -> None: ...

class SubscribeResponse(_message.Message):
    status: Error
    def __init__(self, status: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class DigestList(_message.Message):
    digest_id: int
    list_id: int
    data: _containers.RepeatedCompositeFieldContainer[TableData]
    target: TargetDevice
    def __init__(self, digest_id: _Optional[int] = ..., list_id: _Optional[int] = ..., data: _Optional[_Iterable[_Union[TableData, _Mapping]]] = ..., target: _Optional[_Union[TargetDevice, _Mapping]] = ...) -> None: ...

class IdleTimeoutNotification(_message.Message):
    class NotificationType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        ENTRY_ACTIVE: _ClassVar[IdleTimeoutNotification.NotificationType]
        ENTRY_IDLE: _ClassVar[IdleTimeoutNotification.NotificationType]
    ENTRY_ACTIVE: IdleTimeoutNotification.NotificationType
    ENTRY_IDLE: IdleTimeoutNotification.NotificationType
    target: TargetDevice
    table_entry: TableEntry
    type: IdleTimeoutNotification.NotificationType
    def __init__(self, target: _Optional[_Union[TargetDevice, _Mapping]] = ..., table_entry: _Optional[_Union[TableEntry, _Mapping]] = ..., type: _Optional[_Union[IdleTimeoutNotification.NotificationType, str]] = ...) -> None: ...

class PortStatusChgNotification(_message.Message):
    table_entry: TableEntry
    port_up: bool
    def __init__(self, table_entry: _Optional[_Union[TableEntry, _Mapping]] = ..., port_up: bool = ...) -> None: ...

class SelectorUpdateChgNotification(_message.Message):
    sel_group_id: int
    act_member_id: int
    logical_entry_index: int
    is_add: bool
    def __init__(self, sel_group_id: _Optional[int] = ..., act_member_id: _Optional[int] = ..., logical_entry_index: _Optional[int] = ..., is_add: bool = ...) -> None: ...

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
    details: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...
