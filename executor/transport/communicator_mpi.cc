/// CPU tensors over MPI.
///
/// Reduce-scatter is our own exchange of slices: in step k = 1 .. n-1 a rank sends slot (r+k) mod n
/// to its owner and adds slot r of rank (r-k) mod n, a chunk at a time through two scratch blocks.
/// It moves (n-1)/n of the tensor, needs no temporary of its size, works on any dimension without
/// packing and in place; Open MPI 4.1's own is 1.5 to 3 times slower than its all-reduce.
///
/// Counts above INT_MAX become derived datatypes. All errors return (MPI_ERRORS_RETURN) as
/// kCollective diagnostics.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "base/numbers.h"
#include "executor/launch/rendezvous.h"
#include "executor/state/tensor.h"
#include "executor/transport/communicator.h"

namespace orrery::executor {

using base::ErrorCode;

namespace {

constexpr std::int64_t kScratchBytes = 512 << 10;  // per block; two of them
constexpr std::int64_t kPieceElements = 1 << 28;   // of one MPI reduction

base::Result<void> check(int code, const char* what) {
  if (code == MPI_SUCCESS) return {};
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return base::fail(ErrorCode::kCollective, "{}: {}", what,
                    std::string_view(text.data(), as_index(length)));
}

float widen(std::uint16_t bits) { return std::bit_cast<float>(as_u32(bits) << 16); }
// Round to nearest, ties to even; NaN stays NaN.
std::uint16_t narrow(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

void add_bf16(const std::uint16_t* in, std::uint16_t* sum, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = narrow(widen(sum[i]) + widen(in[i]));
}
void add_float(const float* __restrict in, float* __restrict sum, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] += in[i];
}
void add(model::DType type, const std::byte* in, std::byte* sum, std::int64_t n) {
  if (type == model::DType::kFloat32)
    return add_float(reinterpret_cast<const float*>(in), reinterpret_cast<float*>(sum), n);
  ORRERY_CHECK(type == model::DType::kBFloat16, "a sum of {}", model::to_string(type));
  add_bf16(reinterpret_cast<const std::uint16_t*>(in), reinterpret_cast<std::uint16_t*>(sum), n);
}

extern "C" void orrery_mpi_sum_bf16(void* in, void* sum, int* n, MPI_Datatype*) {
  add_bf16(static_cast<const std::uint16_t*>(in), static_cast<std::uint16_t*>(sum), *n);
}
extern "C" void orrery_mpi_max_bf16(void* in, void* best, int* n, MPI_Datatype*) {
  const auto* from = static_cast<const std::uint16_t*>(in);
  auto* to = static_cast<std::uint16_t*>(best);
  for (int i = 0; i < *n; ++i) to[i] = widen(from[i]) > widen(to[i]) ? from[i] : to[i];
}

MPI_Datatype base_type(model::DType t) {
  switch (t) {
    case model::DType::kFloat32: return MPI_FLOAT;
    case model::DType::kBFloat16: return MPI_UINT16_T;
    case model::DType::kInt64: return MPI_INT64_T;
    case model::DType::kFloat8: return MPI_UINT8_T;
    default: break;
  }
  ORRERY_CHECK(false, "dtype {}", as_int(t));
}

/// A committed datatype of `outer` rows of `inner` elements, rows `stride` elements apart, whose
/// extent is one row.
class RowsType {
 public:
  /// All of a tensor.
  explicit RowsType(const at::Tensor& tensor)
      : RowsType(dtype_of(tensor), 1, tensor.numel(), tensor.numel()) {}
  RowsType(model::DType t, std::int64_t outer, std::int64_t inner, std::int64_t stride) {
    const MPI_Aint bytes = model::element_bytes(t);
    MPI_Datatype row = contiguous(base_type(t), inner, bytes);
    MPI_Datatype rows;
    MPI_Type_create_hvector(as_int(outer), 1, stride * bytes, row, &rows);
    MPI_Type_create_resized(rows, 0, inner * bytes, &type_);
    MPI_Type_commit(&type_);
    MPI_Type_free(&rows);
    MPI_Type_free(&row);
  }
  ~RowsType() { MPI_Type_free(&type_); }
  RowsType(const RowsType&) = delete;
  RowsType& operator=(const RowsType&) = delete;
  [[nodiscard]] MPI_Datatype get() const { return type_; }

 private:
  // MPI counts are int: n elements are q pieces of INT_MAX/2 and a rest.
  static MPI_Datatype contiguous(MPI_Datatype element, std::int64_t n, MPI_Aint bytes) {
    MPI_Datatype made;
    if (n <= INT_MAX) {
      MPI_Type_contiguous(as_int(n), element, &made);
      return made;
    }
    constexpr std::int64_t kPiece = INT_MAX / 2;
    MPI_Datatype piece, pieces;
    MPI_Type_contiguous(as_int(kPiece), element, &piece);
    MPI_Type_contiguous(as_int(n / kPiece), piece, &pieces);
    const std::array<int, 2> counts{1, as_int(n % kPiece)};
    const std::array<MPI_Aint, 2> places{0, n / kPiece * kPiece * bytes};
    const std::array<MPI_Datatype, 2> types{pieces, element};
    MPI_Type_create_struct(2, counts.data(), places.data(), types.data(), &made);
    MPI_Type_free(&pieces);
    MPI_Type_free(&piece);
    return made;
  }
  MPI_Datatype type_{};
};

class MpiTransfer final : public Transfer {
 public:
  explicit MpiTransfer(std::vector<TransferLeg> legs)
      : legs_(std::move(legs)), requests_(legs_.size(), MPI_REQUEST_NULL) {}
  base::Result<void> start(MPI_Comm comm) {
    for (std::size_t i = 0; i < legs_.size(); ++i) {
      const TransferLeg& leg = legs_[i];
      void* data = leg.tensor.mutable_data_ptr();
      const RowsType type(leg.tensor);
      const int code =
          leg.send ? MPI_Isend(data, 1, type.get(), leg.peer, leg.lane, comm, &requests_[i])
                   : MPI_Irecv(data, 1, type.get(), leg.peer, leg.lane, comm, &requests_[i]);
      TRY_VOID(check(code, leg.send ? "send" : "receive"));
    }
    return {};
  }
  base::Result<bool> test() override {
    int done = 0;
    TRY_VOID(
        check(MPI_Testall(as_int(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
              "transfer"));
    return done != 0;
  }
  base::Result<void> wait() override {
    return check(MPI_Waitall(as_int(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE),
                 "transfer");
  }

 private:
  std::vector<TransferLeg> legs_;
  std::vector<MPI_Request> requests_;
};

/// One chunk of a slot on its way: `elements` from element `first` of row `row`, in step `k`.
struct Chunk {
  int k = 0;
  std::int64_t row = 0, first = 0, elements = 0;
};

std::vector<Chunk> chunks_of(const Slots& slots, int group, std::int64_t chunk_elements) {
  std::vector<Chunk> chunks;
  for (int k = 1; k < group; ++k) {
    for (std::int64_t row = 0; row < slots.outer; ++row) {
      for (std::int64_t first = 0; first < slots.inner; first += chunk_elements) {
        chunks.push_back({k, row, first, std::min(chunk_elements, slots.inner - first)});
      }
    }
  }
  return chunks;
}

// Once per process, as MPI demands, however it ends.
base::Result<void> start_mpi() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0) return {};
  int provided = 0;
  TRY_VOID(
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread"));
  std::atexit([] { MPI_Finalize(); });
  std::at_quick_exit([] { MPI_Finalize(); });
  return {};
}

class MpiCommunicator final : public Communicator {
 public:
  base::Result<void> start() {
    TRY_VOID(start_mpi());
    TRY_VOID(check(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup"));
    TRY_VOID(check(MPI_Comm_dup(world_, &exchange_), "MPI_Comm_dup"));
    for (const MPI_Comm comm : {world_, exchange_})
      MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world_, &rank_);
    MPI_Comm_size(world_, &world_size_);
    MPI_Op_create(&orrery_mpi_sum_bf16, 1, &sum_bf16_);
    MPI_Op_create(&orrery_mpi_max_bf16, 1, &max_bf16_);
    return {};
  }
  ~MpiCommunicator() override {
    for (MPI_Comm& comm : channels_) MPI_Comm_free(&comm);
    MPI_Op_free(&sum_bf16_);
    MPI_Op_free(&max_bf16_);
    MPI_Comm_free(&exchange_);
    MPI_Comm_free(&world_);
  }

  base::Result<Channel> channel(std::span<const int> ranks, plan::Stream stream) override {
    std::vector<int> members(ranks.begin(), ranks.end());
    const auto key = std::pair(as_int(stream), members);
    Channel c{.id = -1, .index = 0, .size = as_int(members.size())};
    while (members[as_index(c.index)] != rank_) ++c.index;
    if (const auto known = known_.find(key); known != known_.end()) {
      c.id = known->second;
      return c;
    }
    MPI_Group world, group;
    MPI_Comm_group(world_, &world);
    MPI_Group_incl(world, c.size, members.data(), &group);
    MPI_Comm comm = MPI_COMM_NULL;
    const int code = MPI_Comm_create_group(world_, group, as_int(stream), &comm);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    TRY_VOID(check(code, "MPI_Comm_create_group"));
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    c.id = as_int(channels_.size());
    channels_.push_back(comm);
    known_.emplace(key, c.id);
    return c;
  }

  base::Result<void> all_reduce(const Channel& c, at::Tensor& tensor,
                                plan::Reduce reduce) override {
    const model::DType t = dtype_of(tensor);
    const bool sum = reduce == plan::Reduce::kSum;
    MPI_Op op = sum ? MPI_SUM : MPI_MAX;
    if (t == model::DType::kBFloat16) op = sum ? sum_bf16_ : max_bf16_;
    auto* data = static_cast<std::byte*>(tensor.mutable_data_ptr());
    for (std::int64_t first = 0; first < tensor.numel(); first += kPieceElements) {
      const auto n = as_int(std::min(kPieceElements, tensor.numel() - first));
      TRY_VOID(check(MPI_Allreduce(MPI_IN_PLACE, data + first * model::element_bytes(t), n,
                                   base_type(t), op, comm_of(c)),
                     "all_reduce"));
    }
    return {};
  }

  base::Result<void> all_gather(const Channel& c, const at::Tensor& part, at::Tensor& whole,
                                int dim) override {
    const model::DType t = dtype_of(whole);
    const Slots slots = slots_of(whole, dim, c.size);
    const RowsType slot(t, slots.outer, slots.inner, slots.inner * c.size);
    const RowsType packed(part);
    auto* data = static_cast<std::byte*>(whole.mutable_data_ptr());
    const void* from = part.const_data_ptr();
    const bool in_place = from == data + c.index * slots.inner * model::element_bytes(t);
    return check(MPI_Allgather(in_place ? MPI_IN_PLACE : from, 1, packed.get(), data, 1, slot.get(),
                               comm_of(c)),
                 "all_gather");
  }

  base::Result<void> reduce_scatter(const Channel& c, const at::Tensor& whole, at::Tensor& part,
                                    int dim) override {
    const model::DType t = dtype_of(whole);
    const std::int64_t bytes = model::element_bytes(t);
    const Slots slots = slots_of(whole, dim, c.size);
    const auto* from = static_cast<const std::byte*>(whole.const_data_ptr());
    auto* to = static_cast<std::byte*>(part.mutable_data_ptr());
    const std::int64_t row_bytes = slots.inner * bytes;
    for (std::int64_t row = 0; row < slots.outer; ++row) {
      const std::byte* own = from + (row * c.size + c.index) * row_bytes;
      if (own != to + row * row_bytes) std::memcpy(to + row * row_bytes, own, as_index(row_bytes));
    }
    if (c.size == 1) return {};
    for (auto& block : scratch_) block.resize(as_index(kScratchBytes));
    const std::vector<Chunk> chunks = chunks_of(slots, c.size, kScratchBytes / bytes);
    std::array<std::array<MPI_Request, 2>, 2> requests;
    // Chunk i is under way while chunk i - 1 is added.
    for (std::size_t i = 0; i <= chunks.size(); ++i) {
      if (i < chunks.size()) {
        const Chunk& n = chunks[i];
        const int owner = (c.index + n.k) % c.size, source = (c.index - n.k + c.size) % c.size;
        const auto count = as_int(n.elements);
        const std::byte* out = from + (n.row * c.size + owner) * row_bytes + n.first * bytes;
        auto& pair = requests[i % 2];
        TRY_VOID(check(
            MPI_Irecv(scratch_[i % 2].data(), count, base_type(t), source, 0, comm_of(c), &pair[0]),
            "reduce_scatter"));
        TRY_VOID(check(MPI_Isend(out, count, base_type(t), owner, 0, comm_of(c), &pair[1]),
                       "reduce_scatter"));
      }
      if (i == 0) continue;
      const Chunk& p = chunks[i - 1];
      TRY_VOID(check(MPI_Waitall(2, requests[(i - 1) % 2].data(), MPI_STATUSES_IGNORE),
                     "reduce_scatter"));
      add(t, scratch_[(i - 1) % 2].data(), to + p.row * row_bytes + p.first * bytes, p.elements);
    }
    return {};
  }

  base::Result<void> all_to_all(const Channel& c, const at::Tensor& in, at::Tensor& out) override {
    const std::int64_t n = in.numel() / c.size;
    const RowsType block(dtype_of(in), 1, n, n);
    return check(MPI_Alltoall(in.const_data_ptr(), 1, block.get(), out.mutable_data_ptr(), 1,
                              block.get(), comm_of(c)),
                 "all_to_all");
  }
  base::Result<void> shift(const Channel& c, const at::Tensor& in, at::Tensor& out) override {
    const RowsType all(in);
    const int next = (c.index + 1) % c.size, before = (c.index + c.size - 1) % c.size;
    return check(MPI_Sendrecv(in.const_data_ptr(), 1, all.get(), next, 0, out.mutable_data_ptr(), 1,
                              all.get(), before, 0, comm_of(c), MPI_STATUS_IGNORE),
                 "shift");
  }
  base::Result<void> broadcast(const Channel& c, at::Tensor& tensor, int root_index) override {
    const RowsType all(tensor);
    return check(MPI_Bcast(tensor.mutable_data_ptr(), 1, all.get(), root_index, comm_of(c)),
                 "broadcast");
  }

  base::Result<std::unique_ptr<Transfer>> post(std::vector<TransferLeg> legs) override {
    auto transfer = std::make_unique<MpiTransfer>(std::move(legs));
    TRY_VOID(transfer->start(exchange_));
    return transfer;
  }

  base::Result<void> barrier() override { return check(MPI_Barrier(world_), "barrier"); }

  base::Result<std::vector<std::string>> gather(const std::string& text) override {
    const bool root = rank_ == 0;
    const auto size = as_int(text.size());
    std::vector<int> sizes(root ? as_index(world_size_) : 0), places;
    TRY_VOID(check(MPI_Gather(&size, 1, MPI_INT, sizes.data(), 1, MPI_INT, 0, world_), "gather"));
    int total = 0;
    for (const int s : sizes) {
      places.push_back(total);
      total += s;
    }
    std::string all(as_index(total), '\0');
    TRY_VOID(check(MPI_Gatherv(text.data(), size, MPI_CHAR, all.data(), sizes.data(), places.data(),
                               MPI_CHAR, 0, world_),
                   "gather"));
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      texts.push_back(all.substr(as_index(places[i]), as_index(sizes[i])));
    }
    return texts;
  }

  base::Result<std::string> broadcast(const std::string& text) override {
    auto size = static_cast<std::int64_t>(text.size());
    TRY_VOID(check(MPI_Bcast(&size, 1, MPI_INT64_T, 0, world_), "broadcast"));
    std::string result = text;
    result.resize(as_index(size));
    TRY_VOID(check(MPI_Bcast(result.data(), as_int(size), MPI_CHAR, 0, world_), "broadcast"));
    return result;
  }

  void abort(int exit_code) override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

 private:
  [[nodiscard]] MPI_Comm comm_of(const Channel& c) const { return channels_[as_index(c.id)]; }

  MPI_Comm world_ = MPI_COMM_NULL, exchange_ = MPI_COMM_NULL;
  MPI_Op sum_bf16_ = MPI_OP_NULL, max_bf16_ = MPI_OP_NULL;
  std::vector<MPI_Comm> channels_;
  std::map<std::pair<int, std::vector<int>>, int> known_;
  std::array<std::vector<std::byte>, 2> scratch_;
};

}  // namespace

base::Result<std::string> mpi_rendezvous() {
  TRY_VOID(start_mpi());
  std::array<char, MPI_MAX_PROCESSOR_NAME + 8> text{};
  int rank = 0, length = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) {
    TRY_VOID(check(MPI_Get_processor_name(text.data(), &length), "MPI_Get_processor_name"));
    const base::Result<std::uint16_t> port = free_port();
    const std::string tail = ":" + (port ? std::to_string(*port) : "");
    tail.copy(text.data() + length, tail.size());
  }
  TRY_VOID(
      check(MPI_Bcast(text.data(), as_int(text.size()), MPI_CHAR, 0, MPI_COMM_WORLD), "MPI_Bcast"));
  std::string found = text.data();
  if (found.ends_with(':'))
    return base::fail(ErrorCode::kCollective, "rank 0 finds no free port to meet at");
  return found;
}

base::Result<std::unique_ptr<Communicator>> make_mpi_communicator() {
  auto made = std::make_unique<MpiCommunicator>();
  TRY_VOID(made->start());
  return made;
}

}  // namespace orrery::executor
