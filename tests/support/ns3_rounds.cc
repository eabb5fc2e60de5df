// SPDX-License-Identifier: Apache-2.0
// Rounds of aggregation on a network of ns-3: point-to-point devices, drop-tail queues, and nodes that send a packet
// when the packets that it depends on have arrived. Nothing here is p4reduce's: sizes come from the input, times from
// ns-3.
//
// The input has a line for each of these, in this order:
//     link A B RATE DELAY_NS QUEUE            a cable between two nodes; bits a second, bytes
//     delay NS                                between a packet's arrival at a switch and its departure
//     parent TREE CHILD PARENT                workers are the nodes without children
//     packet TREE SLOT ROUND FROM TO BYTES    on the wire, with all of Ethernet
// The output is the time in ns at which the last worker has the last result.
#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "ns3/core-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

using namespace ns3;

namespace {

struct Round {
    uint32_t tree, slot, number;
    bool operator<(const Round &other) const {
        return std::tie(tree, slot, number) < std::tie(other.tree, other.slot, other.number);
    }
};

constexpr uint32_t PPP_BYTES = 2; // which ns-3's device adds

std::map<uint32_t, Ptr<Node>> nodes;
std::map<std::pair<uint32_t, uint32_t>, Ptr<NetDevice>> devices; // from, to
std::map<Ptr<NetDevice>, std::pair<uint32_t, uint32_t>> ends;    // node, and the node at the other end
std::map<std::pair<uint32_t, uint32_t>, uint32_t> parents;       // tree, child
std::map<std::pair<uint32_t, uint32_t>, std::set<uint32_t>> children;
std::map<Round, std::map<std::pair<uint32_t, uint32_t>, uint32_t>> sizes; // from, to
std::map<std::pair<uint32_t, Round>, uint32_t> counted;                   // node
Time switchDelay;
Time last;

Ptr<Node> NodeOf(uint32_t number) {
    Ptr<Node> &node = nodes[number];
    if (!node)
        node = CreateObject<Node>();
    return node;
}

void Send(uint32_t from, uint32_t to, Round round) {
    const uint32_t size = sizes.at(round).at({from, to}) - PPP_BYTES;
    std::vector<uint8_t> bytes(size);
    std::memcpy(bytes.data(), &round, sizeof round);
    Ptr<NetDevice> device = devices.at({from, to});
    device->Send(Create<Packet>(bytes.data(), size), device->GetBroadcast(), 0x0800);
}

// A worker sends its packet of a round, if there is one.
void Begin(uint32_t worker, Round round) {
    if (sizes.count(round))
        Send(worker, parents.at({round.tree, worker}), round);
}

void Spread(uint32_t node, Round round) {
    for (uint32_t child : children[{round.tree, node}])
        Simulator::Schedule(switchDelay, &Send, node, child, round);
}

bool Receive(Ptr<NetDevice> device, Ptr<const Packet> packet, uint16_t, const Address &) {
    Round round;
    packet->CopyData(reinterpret_cast<uint8_t *>(&round), sizeof round);
    const auto [node, from] = ends.at(device);
    const auto &below = children[{round.tree, node}];
    const auto parent = parents.find({round.tree, node});
    if (below.empty()) { // a worker: the result of its round
        last = Simulator::Now();
        Begin(node, {round.tree, round.slot, round.number + 1});
    } else if (parent != parents.end() && from == parent->second) {
        Spread(node, round);
    } else if (++counted[{node, round}] == below.size()) {
        if (parent == parents.end())
            Spread(node, round);
        else
            Simulator::Schedule(switchDelay, &Send, node, parent->second, round);
    }
    return true;
}

void Connect(uint32_t a, uint32_t b, const std::string &rate, const std::string &delay, const std::string &queue) {
    PointToPointHelper helper;
    helper.SetDeviceAttribute("DataRate", StringValue(rate + "bps"));
    helper.SetChannelAttribute("Delay", StringValue(delay + "ns"));
    helper.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue(queue + "B"));
    NetDeviceContainer made = helper.Install(NodeOf(a), NodeOf(b));
    for (uint32_t end = 0; end < 2; end++) {
        const auto at = end == 0 ? std::make_pair(a, b) : std::make_pair(b, a);
        made.Get(end)->SetMtu(65535);
        made.Get(end)->SetReceiveCallback(MakeCallback(&Receive));
        devices[at] = made.Get(end);
        ends[made.Get(end)] = at;
    }
}

} // namespace

int main() {
    std::string kind, rate, delay, queue;
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> firsts; // tree, slot
    while (std::cin >> kind) {
        uint32_t tree, a, b, slot, number, bytes;
        if (kind == "link") {
            std::cin >> a >> b >> rate >> delay >> queue;
            Connect(a, b, rate, delay, queue);
        } else if (kind == "delay") {
            std::cin >> number;
            switchDelay = NanoSeconds(number);
        } else if (kind == "parent") {
            std::cin >> tree >> a >> b;
            parents[{tree, a}] = b;
            children[{tree, b}].insert(a);
        } else {
            std::cin >> tree >> slot >> number >> a >> b >> bytes;
            sizes[{tree, slot, number}][{a, b}] = bytes;
            auto first = firsts.emplace(std::make_pair(tree, slot), number).first;
            first->second = std::min(first->second, number);
        }
    }
    for (const auto &[of, number] : firsts)
        for (const auto &[child, parent] : parents)
            if (child.first == of.first && children.count(child) == 0)
                Simulator::Schedule(Seconds(0), &Begin, child.second, Round{of.first, of.second, number});
    Simulator::Run();
    std::cout << last.GetNanoSeconds() << std::endl;
    Simulator::Destroy();
    return 0;
}
