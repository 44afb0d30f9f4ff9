// Reads a file of a snapshot from arbitrary bytes into a table. Half of the runs give blocks whose
// checksums are right, so that what they say is looked at. The table takes the whole content, or
// is as it was.
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "input.h"
#include "snapshot/block.h"
#include "tfra/snapshot.h"
#include "tfra/trained_table.h"

namespace tfra::fuzz {
namespace {

constexpr uint64_t kSnapshot = 77;

TableSpec SpecOf(Input* input) {
  TableSpec spec;
  spec.key_type = static_cast<KeyType>(input->Below(3));
  constexpr ValueType kTypes[] = {ValueType::kFloat32, ValueType::kBool, ValueType::kString};
  spec.value_type = kTypes[input->Below(3)];
  spec.dim = 1 + input->Below(3);
  spec.metadata = input->Flag();
  if (spec.value_type == ValueType::kFloat32 && input->Flag()) spec.rule.kind = RuleKind::kAdam;
  if (spec.metadata && input->Flag()) {
    spec.admission.kind = input->Flag() ? AdmissionKind::kMinCount : AdmissionKind::kBloomFilter;
    spec.admission.min_count = 2;
    spec.admission.filter_keys = 10;
  }
  if (input->Flag()) spec.bound.max_capacity = 50;
  return spec;
}

// Blocks that follow the format, but for some numbers of the header.
std::string Blocks(Input* input) {
  std::string file;
  uint64_t rows = 0;
  for (uint64_t number = 0; !input->empty() && number < 8; ++number) {
    BlockHeader header{};
    std::memcpy(header.magic, kBlockMagic, sizeof(kBlockMagic));
    header.kind = static_cast<BlockKind>(1 + input->Below(5));
    header.rows = input->Below(16) == 0 ? static_cast<uint32_t>(input->Integer()) : input->Below(6);
    header.number = input->Below(32) == 0 ? input->Below(4) : number;
    header.snapshot = kSnapshot;
    header.rows_before = rows;
    std::string columns;
    for (uint32_t left = input->Below(5); left > 0; --left) {
      columns += input->String();
      columns.resize(RoundUp(columns.size(), kColumnAlign));
    }
    header.bytes = input->Below(32) == 0 ? static_cast<uint64_t>(input->Integer()) : columns.size();
    header.columns_sum = Crc32c(columns.data(), columns.size());
    header.header_sum = Crc32c(&header, kSummedHeader);
    file.append(reinterpret_cast<const char*>(&header), sizeof(header));
    file += columns;
    file.resize(RoundUp(file.size(), kBlockAlign));
    if (header.kind == BlockKind::kRows) rows += header.rows;
  }
  return file;
}

}  // namespace
}  // namespace tfra::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tfra;
  using namespace tfra::fuzz;
  Input input(data, size);
  const TableSpec spec = SpecOf(&input);
  const bool has_state = input.Flag();
  const std::string bytes = input.Flag() ? Blocks(&input) : input.Rest();
  const int file = memfd_create("part", 0);
  REQUIRE(file >= 0);
  REQUIRE(write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));

  std::shared_ptr<TrainedTable> table;
  REQUIRE_OK(TrainedTable::Create(spec, &table));
  const std::vector<int64_t> ints = {7, 9};
  const std::vector<std::string_view> strings = {"seven", "nine"};
  const KeyBatch keys =
      spec.key_type == KeyType::kString ? KeyBatch(strings.data(), 2) : KeyBatch(ints.data(), 2);
  const std::vector<float> numbers(8);
  const std::vector<std::string_view> texts(8, "text");
  const void* values = spec.value_type == ValueType::kString
                           ? static_cast<const void*>(texts.data())
                           : static_cast<const void*>(numbers.data());
  REQUIRE_OK(TrainedTable::Use(table)->Assign(keys, values));

  std::unique_ptr<ContentWriter> writer;
  REQUIRE_OK(table->NewReplacement({.rule = spec.rule}, &writer));
  const ContentState state;
  PartFigures figures;
  const PartName name{"/proc/self/fd/" + std::to_string(file), kSnapshot, 0};
  Status status = ReadPart(name, spec, has_state ? &state : nullptr, writer.get(), &figures);
  if (status.ok()) {
    REQUIRE(figures.bytes == bytes.size());
    status = writer->Finish();
  }
  const TrainedTable::Use use(table);
  if (status.ok()) {
    REQUIRE(use->size() <= figures.rows);
  } else {
    REQUIRE(status.code() == StatusCode::kInvalidArgument);
    REQUIRE(use->size() == 2);
  }
  const TableStats stats = use->stats();
  REQUIRE(stats.inserts - stats.removals - stats.evictions == stats.size);
  ExportBatch batch;
  REQUIRE_OK(use->ExportAll(&batch));
  REQUIRE(batch.size == use->size());
  REQUIRE_OK(use->Assign(keys, values));
  (void)close(file);
  return 0;
}
