#pragma once
/// The order in which a pipeline meets the kinds of device of a machine.
///
/// A host is of the kind of its first device. In an order (m_1, m_2, ...) of device models, ranks
/// count the hosts of m_1 first, then those of m_2, and so on; hosts of one kind stay as they were
/// (Topology::with_hosts_first). Pipeline stages are ranges of ranks, so the order says which kinds
/// hold the first layers. Of k kinds there are k! orders.
#include <span>
#include <string>
#include <vector>

#include "topologies/topology.h"

namespace orrery::topologies {

using DeviceOrder = std::vector<std::string>;  // names of device models

/// Kinds of the hosts, in the order of their first ranks.
DeviceOrder device_order(const Topology& topology);

/// Every order of the kinds, that of device_order() first, the others by its positions. One kind:
/// that alone; more than kMostOrderedKinds: that alone too.
inline constexpr std::size_t kMostOrderedKinds = 4;
std::vector<DeviceOrder> device_orders(const Topology& topology);

/// Whether ranks count hosts in this order.
bool is_in_device_order(const Topology& topology, std::span<const std::string> order);

/// Error: kInconsistent, when they do not. No order is any.
base::Result<void> check_device_order(const Topology& topology, std::span<const std::string> order);

/// The same machine with ranks in this order; itself where they are. Errors: kNotFound (a model
/// that no host begins with), kInconsistent (one named twice, or left out).
base::Result<Topology> in_device_order(const Topology& topology,
                                       std::span<const std::string> order);

}  // namespace orrery::topologies
