-- SPDX-License-Identifier: Apache-2.0
-- Dissects the packets of p4reduce in Wireshark and tshark. Written by `p4reduce trace dissector`.
--
--   tshark -X lua_script:p4reduce.lua -r job.pcap
--
-- Wireshark loads it from its folder of personal Lua plugins (Help, About, Folders). Packets to and from UDP port $port
-- are dissected; for a switch with another port: Decode As, or tshark -d udp.port==PORT,p4reduce.

local VERSION, PORT, NO_KEY, NOBODY, SHORT_HELLO = $version, $port, $no_key, $nobody, $short_hello
local HEADER_BYTES, EXPONENT_BITS = $header_bytes, $exponent_bits
local OPS = $ops
local REASONS = $reasons
local FIELDS = {
$fields
}
-- Lanes and values in a block: those of the two programs that are installed, then of all others that can be compiled.
local BUILDS = { $builds }

local proto = Proto("p4reduce", "p4reduce aggregation")
proto.prefs.lanes = Pref.uint("Lanes", 0, "Lanes of the P4 program; 0: told by the lengths of datagrams")
proto.prefs.block_size = Pref.uint("Block size", 0, "Values in a block; 0: told by the lengths of datagrams")

local TYPES = { ProtoField.uint8, ProtoField.uint16, nil, ProtoField.uint32 }
local SHOWN = { op = base.DEC, active = base.HEX, present = base.HEX, fingerprint = base.HEX }
local fields, all = {}, {}

local function declare(name, make, ...)
    fields[name] = make("p4reduce." .. name, ...)
    table.insert(all, fields[name])
end

for _, one in ipairs(FIELDS) do
    local names = one.name == "op" and OPS or nil
    declare(one.name, TYPES[one.size], one.title, SHOWN[one.name] or base.DEC, names, one.mask, one.text)
end
local EXPONENT = 2 ^ EXPONENT_BITS - 1
declare("slot.index", ProtoField.uint16, "Slot", base.DEC, nil, 0xFFFE, "index within the job's pool")
declare("slot.half", ProtoField.uint16, "Half", base.DEC, nil, 0x0001, "of the slot")
declare("fingerprint.operation", ProtoField.uint32, "Operation's", base.HEX, nil, 0xFFFFFF00)
declare("fingerprint.lanes", ProtoField.uint32, "Active lanes", base.HEX, nil, 0x000000FF)
declare("key", ProtoField.uint32, "Key", base.HEX, nil, nil, "the next non-zero block of the lane's stream")
declare("key.lane", ProtoField.uint8, "Lane", base.DEC)
declare("key.block", ProtoField.uint32, "Block", base.DEC)
declare("key.exponent", ProtoField.uint8, "Largest biased exponent", base.DEC)
declare("counted", ProtoField.uint32, "Workers counted", base.HEX, nil, nil, "bitmap of who is counted so far")
declare("came", ProtoField.uint32, "Fingerprint that came", base.HEX, nil, nil, "another than the switch has")
declare("reason", ProtoField.uint32, "Reason", base.DEC, REASONS, 0x0000FFFF, "why the job ended")
declare("lost", ProtoField.uint32, "Lost rank", base.DEC, nil, nil, "if it is too large for the worker field")
declare("nonce", ProtoField.uint32, "Nonce, lower half", base.HEX, nil, nil, "the upper half is the fingerprint")
declare("short", ProtoField.bool, "Short", base.NONE, nil, nil, "a HELLO without values beside full ones")
declare("lane", ProtoField.uint8, "Lane", base.DEC)
declare("values", ProtoField.bytes, "Values", base.NONE, "of one lane")
declare("value", ProtoField.int32, "Value", base.DEC)
declare("length", ProtoField.uint32, "Length", base.DEC, nil, nil, "bytes of this packet, by its lanes")
declare("lanes", ProtoField.uint8, "Lanes of the program", base.DEC)
declare("block_size", ProtoField.uint16, "Values in a block", base.DEC)
proto.fields = all

local malformed = ProtoExpert.new("p4reduce.malformed", "The packet is malformed",
                                  expert.group.MALFORMED, expert.severity.ERROR)
local cut = ProtoExpert.new("p4reduce.cut", "The packet was cut: capture whole packets (tcpdump -s 0)",
                            expert.group.UNDECODED, expert.severity.WARN)
proto.experts = { malformed, cut }

local function has(mask, lane)
    return math.floor(mask / 2 ^ lane) % 2 == 1
end

local function lanes_of(mask)
    local found = {}
    for lane = 0, 31 do
        if has(mask, lane) then table.insert(found, string.format("%d", lane)) end
    end
    return found
end

local function packet_length(lanes, block_size, present)
    return HEADER_BYTES + 4 * lanes + 4 * block_size * #lanes_of(present)
end

-- Returns whether the datagram is one packet of this build, or several that the kernel sends as one. These have the
-- same length, except that the last may be shorter.
local function fits(buffer, lanes, block_size)
    local at, length, size, captured = 0, 0, buffer:reported_len(), buffer:captured_len()
    while at < size do
        if at + 3 > captured then
            if captured >= size then return false end
            local last = at > 0 and (size - at) % length or 0
            for count = 0, lanes do
                if last == 0 or last == packet_length(lanes, block_size, 2 ^ count - 1) then return true end
            end
            return false
        end
        local active, present = buffer(at + 1, 1):uint(), buffer(at + 2, 1):uint()
        if buffer(at, 1):bitfield(0, 4) ~= VERSION or active >= 2 ^ lanes then return false end
        for lane = 0, 7 do
            if has(present, lane) and not has(active, lane) then return false end
        end
        length = packet_length(lanes, block_size, present)
        at = at + length
    end
    return at == size
end

local function build_of(buffer)
    if proto.prefs.lanes > 0 and proto.prefs.block_size > 0 then
        return proto.prefs.lanes, proto.prefs.block_size
    end
    for _, build in ipairs(BUILDS) do
        if fits(buffer, build[1], build[2]) then return build[1], build[2] end
    end
    return nil
end

-- Fields for the first key of packets whose keys name no blocks.
local FIRST_KEYS = { STATUS = "counted", ERROR = "came", ABORT = "reason", HELLO = "nonce" }

local function add_key(tree, range, lane, op)
    local other = FIRST_KEYS[op]
    if other then
        if lane > 0 then return end
        local item = tree:add(fields[other], range)
        local upper_half = range:bitfield(0, 16)
        if other == "reason" and upper_half > 0 then tree:add(fields["lost"], range, upper_half - 1) end
        if other == "counted" then item:append_text(" (" .. table.concat(lanes_of(range:uint()), ", ") .. ")") end
        return
    end
    local key, item = range:uint(), tree:add(fields["key"], range)
    item:add(fields["key.lane"], range, lane):set_generated()
    if key == NO_KEY then
        item:append_text(string.format(" (lane %d: no more blocks)", lane))
        return
    end
    local block = range:bitfield(0, 32 - EXPONENT_BITS)
    local exponent = EXPONENT - range:bitfield(32 - EXPONENT_BITS, EXPONENT_BITS)
    item:append_text(string.format(" (lane %d: block %d, exponent %d)", lane, block, exponent))
    item:add(fields["key.block"], range, block)
    item:add(fields["key.exponent"], range, exponent)
end

local function add_header(tree, buffer)
    for _, one in ipairs(FIELDS) do
        local range = buffer(one.at, one.size)
        local item = tree:add(fields[one.name], range)
        if one.name == "active" or one.name == "present" then
            local lanes = lanes_of(range:uint())
            item:append_text(#lanes > 0 and " (lanes " .. table.concat(lanes, ", ") .. ")" or " (none)")
        elseif one.name == "worker" and range:uint() == NOBODY then
            item:append_text(" (none of them)")
        elseif one.name == "slot" then
            item:add(fields["slot.index"], range)
            item:add(fields["slot.half"], range)
        elseif one.name == "fingerprint" then
            item:add(fields["fingerprint.operation"], range)
            item:add(fields["fingerprint.lanes"], range)
        end
    end
end

local function add_values(tree, buffer, present, block_size, at)
    for _, lane in ipairs(lanes_of(present)) do
        local length = math.min(4 * block_size, buffer:captured_len() - at)
        if length <= 0 then return end
        local range = buffer(at, length)
        local item = tree:add(fields["values"], range)
        item:set_text(string.format("Lane %s: %d values", lane, block_size))
        item:add(fields["lane"], range, tonumber(lane)):set_generated()
        for offset = at, at + length - 4, 4 do item:add(fields["value"], buffer(offset, 4)) end
        at = at + length
    end
end

local function number(buffer, name)
    for _, one in ipairs(FIELDS) do
        if one.name == name then return buffer(one.at, one.size):uint() end
    end
end

-- Returns a packet's line for the list.
local function told(buffer, op)
    local slot = number(buffer, "slot")
    return string.format("%s job %d.%d worker %d slot %d.%d seq %d", op, number(buffer, "job"),
                         number(buffer, "generation"), number(buffer, "worker"), math.floor(slot / 2), slot % 2,
                         number(buffer, "seq"))
end

-- Adds the first packet of the buffer. size: bytes on the wire from there to the datagram's end. Returns the packet's
-- length, and its line for the list.
local function add_packet(root, buffer, size, lanes, block_size)
    local captured = buffer:captured_len()
    if captured < HEADER_BYTES then
        root:add(proto, buffer()):add_proto_expert_info(cut)
        return size, "cut packet"
    end
    local op_number, present = buffer(0, 1):bitfield(4, 4), number(buffer, "present")
    local op = OPS[op_number] or string.format("op %d", op_number)
    local length = lanes and packet_length(lanes, block_size, present) or size
    local tree = root:add(proto, buffer(0, math.min(length, captured)))
    local line = told(buffer, op)
    tree:append_text(", " .. line)
    add_header(tree, buffer)
    if not OPS[op_number] then tree:add_proto_expert_info(malformed, "There is no operation of this number") end
    if not lanes then
        tree:add_proto_expert_info(malformed, "The length fits no number of lanes and block size, or lanes are not active")
        return size, line .. ", malformed"
    end
    tree:add(fields["length"], length):set_generated()
    tree:add(fields["lanes"], lanes):set_generated()
    tree:add(fields["block_size"], block_size):set_generated()
    if op == "HELLO" then
        tree:add(fields["short"], present == 0 and number(buffer, "seq") == SHORT_HELLO):set_generated()
    end
    for lane = 0, lanes - 1 do
        local at = HEADER_BYTES + 4 * lane
        if at + 4 <= captured then add_key(tree, buffer(at, 4), lane, op) end
    end
    add_values(tree, buffer, present, block_size, HEADER_BYTES + 4 * lanes)
    if captured < length and captured < size then
        tree:add_proto_expert_info(cut)
    elseif size < length then
        tree:add_proto_expert_info(malformed, string.format("The packet has %d of %d bytes", size, length))
    end
    return length, line
end

function proto.dissector(buffer, pinfo, root)
    local captured, size = buffer:captured_len(), buffer:reported_len()
    if size < HEADER_BYTES or (captured > 0 and buffer(0, 1):bitfield(0, 4) ~= VERSION) then return 0 end
    pinfo.cols.protocol = "p4reduce"
    local lanes, block_size = build_of(buffer)
    local at, count, first = 0, 0, nil
    while at < size do
        if at >= captured then
            local text = "%d bytes of further packets were cut: capture whole packets (tcpdump -s 0)"
            root:add_proto_expert_info(cut, string.format(text, size - at))
            break
        end
        local length, line = add_packet(root, buffer(at):tvb(), size - at, lanes, block_size)
        at, count, first = at + length, count + 1, first or line
    end
    first = first or "cut packet"
    pinfo.cols.info = count > 1 and string.format("%s, and %d more", first, count - 1) or first
    return captured
end

DissectorTable.get("udp.port"):add(PORT, proto)
