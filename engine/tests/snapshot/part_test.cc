// Files of a snapshot: what is written is read, and nothing else is.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "check.h"
#include "folder_helpers.h"
#include "snapshot/part_reader.h"
#include "snapshot/part_writer.h"
#include "table_helpers.h"

namespace tfra::test {
namespace {

constexpr uint64_t kSnapshot = 0x0123456789ABCDEF;
constexpr uint32_t kPart = 7;

// Rows of any format, in memory of their own.
struct Rows {
  size_t size = 0;
  std::vector<int64_t> ints;
  std::vector<std::string> key_texts, value_texts;
  std::vector<std::string_view> key_views, value_views;
  std::vector<std::byte> values, slots;
  std::vector<RowMetadata> metadata;
  std::vector<uint64_t> scores;

  KeyBatch keys() const {
    return key_texts.empty() ? KeyBatch(ints.data(), size) : KeyBatch(key_views.data(), size);
  }
  RowColumns columns() const {
    return {.keys = keys(),
            .values =
                value_texts.empty() ? static_cast<const void*>(values.data()) : value_views.data(),
            .slots = slots.data(),
            .metadata = metadata.data(),
            .scores = scores.data()};
  }
};

std::vector<std::byte> RandomBytes(size_t bytes, std::mt19937_64* random, bool bits = false) {
  std::vector<std::byte> made(bytes);
  for (std::byte& each : made) each = static_cast<std::byte>(bits ? (*random)() % 2 : (*random)());
  return made;
}

Rows RandomRows(const RowFormat& format, size_t n, size_t longest, std::mt19937_64* random) {
  Rows rows;
  rows.size = n;
  const auto text = [&] {
    std::string made((*random)() % (longest + 1), '\0');
    for (char& c : made) c = static_cast<char>((*random)());
    return made;
  };
  for (size_t i = 0; i < n; ++i) {
    if (format.has_string_keys()) rows.key_texts.push_back(text());
    rows.ints.push_back(format.key_type == KeyType::kInt32 ? static_cast<int32_t>((*random)())
                                                           : static_cast<int64_t>((*random)()));
    rows.metadata.push_back({static_cast<uint32_t>((*random)()), 1 + static_cast<uint32_t>(i)});
    rows.scores.push_back((*random)());
  }
  if (format.has_string_values()) {
    for (size_t i = 0; i < n * format.dim; ++i) rows.value_texts.push_back(text());
  }
  for (const std::string& each : rows.key_texts) rows.key_views.push_back(each);
  for (const std::string& each : rows.value_texts) rows.value_views.push_back(each);
  rows.values =
      RandomBytes(n * format.value_bytes(), random, format.value_type == ValueType::kBool);
  rows.slots = RandomBytes(n * format.slot_bytes, random);
  return rows;
}

// One line for each row, with the bytes of all columns.
void AddLines(const RowFormat& format, const RowColumns& rows, std::vector<std::string>* lines) {
  const auto bytes = [](const void* column, size_t i, size_t width) {
    return std::string(static_cast<const char*>(column) + i * width, width);
  };
  for (size_t i = 0; i < rows.keys.size; ++i) {
    std::string line = format.has_string_keys() ? std::string(rows.keys.strings[i])
                                                : std::to_string(rows.keys.ints[i]);
    line += '|';
    if (format.has_string_values()) {
      const auto* values = static_cast<const std::string_view*>(rows.values);
      for (size_t j = 0; j < format.dim; ++j) {
        line += values[i * format.dim + j];
        line += '|';
      }
    } else {
      line += bytes(rows.values, i, format.value_bytes());
    }
    if (format.slot_bytes > 0) line += bytes(rows.slots, i, format.slot_bytes);
    if (format.metadata) line += bytes(rows.metadata, i, sizeof(RowMetadata));
    if (format.scores) line += bytes(rows.scores, i, sizeof(uint64_t));
    lines->push_back(line);
  }
}

std::vector<RowFormat> Formats() {
  std::vector<RowFormat> formats;
  for (const KeyType key_type : {KeyType::kInt64, KeyType::kInt32, KeyType::kString}) {
    for (const ValueType value_type :
         {ValueType::kFloat32, ValueType::kFloat64, ValueType::kBool, ValueType::kString}) {
      for (const int columns : {0, 1, 2, 7}) {
        formats.push_back({.key_type = key_type,
                           .value_type = value_type,
                           .dim = 3,
                           .slot_bytes = columns & 1 ? size_t{24} : 0,
                           .metadata = (columns & 2) != 0,
                           .scores = (columns & 4) != 0});
      }
    }
  }
  return formats;
}

// What a file has.
struct Content {
  std::vector<std::string> rows, removed, waiting;
  std::vector<std::byte> filter;
  uint64_t blocks = 0;
};

Status Read(const std::string& path, const RowFormat& format, Content* content,
            uint64_t snapshot = kSnapshot, uint32_t part = kPart) {
  PartReader reader(path, snapshot, part, format);
  TFRA_RETURN_IF_ERROR(reader.Open());
  RowFormat keys_only{.key_type = format.key_type, .value_type = ValueType::kInt8, .dim = 0};
  RowFormat waiting = keys_only;
  waiting.metadata = true;
  for (;;) {
    Block block;
    TFRA_RETURN_IF_ERROR(reader.Next(&block));
    if (block.kind == BlockKind::kEnd) break;
    CHECK(block.kind == BlockKind::kFilter || block.rows.keys.size > 0);
    if (block.kind == BlockKind::kRows) AddLines(format, block.rows, &content->rows);
    if (block.kind == BlockKind::kRemoved) AddLines(keys_only, block.rows, &content->removed);
    if (block.kind == BlockKind::kWaiting) AddLines(waiting, block.rows, &content->waiting);
    content->filter.insert(content->filter.end(), block.filter, block.filter + block.filter_bytes);
  }
  Block again;
  CHECK_OK(reader.Next(&again));
  CHECK(again.kind == BlockKind::kEnd);
  content->blocks = reader.blocks();
  CHECK_EQ(reader.bytes(), std::filesystem::file_size(path));
  CHECK_EQ(reader.rows(), content->rows.size());
  CHECK_EQ(reader.removed(), content->removed.size());
  return Status::Ok();
}

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void Put(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);  // Some file systems flush files that are written again.
  std::ofstream(path, std::ios::binary) << bytes;
}

// A file with three blocks of rows, one of each other kind, and the end.
std::string SmallFile(const std::string& path, const RowFormat& format, uint64_t snapshot,
                      uint32_t part) {
  std::mt19937_64 random(snapshot + part);
  PartWriter writer(path, snapshot, part, format);
  CHECK_OK(writer.Open());
  const Rows rows = RandomRows(format, 5, 9, &random);
  CHECK_OK(writer.WriteRemoved(rows.keys()));
  for (int i = 0; i < 3; ++i) CHECK_OK(writer.WriteRows(rows.columns()));
  CHECK_OK(writer.WriteWaiting(rows.keys(), rows.metadata.data()));
  const std::vector<std::byte> filter = RandomBytes(100, &random);
  CHECK_OK(writer.WriteFilter(filter.data(), filter.size()));
  CHECK_OK(writer.Finish());
  return BytesOf(path);
}

constexpr RowFormat kSmall{.dim = 2, .slot_bytes = 8, .metadata = true};

}  // namespace

TEST(PartsKeepRowsOfEveryFormat) {
  const Folder folder;
  std::mt19937_64 random(3);
  int number = 0;
  for (const RowFormat& format : Formats()) {
    constexpr size_t kSizes[] = {0, 1, 700, 9000};
    const size_t n = kSizes[static_cast<size_t>(number) % 4];
    const std::string path = folder / std::to_string(number++);
    const Rows rows = RandomRows(format, n, 40, &random);
    const Rows others = RandomRows(format, n / 2, 40, &random);
    const std::vector<std::byte> filter = RandomBytes(n * 200, &random);
    PartWriter writer(path, kSnapshot, kPart, format);
    CHECK_OK(writer.Open());
    CHECK_OK(writer.WriteRemoved(others.keys()));
    CHECK_OK(writer.WriteRows(rows.columns()));
    CHECK_OK(writer.WriteWaiting(others.keys(), others.metadata.data()));
    CHECK_OK(writer.WriteFilter(filter.data(), filter.size()));
    CHECK_OK(writer.Finish());
    CHECK_EQ(writer.bytes(), std::filesystem::file_size(path));

    Content content;
    std::vector<std::string> expected, keys, waiting;
    AddLines(format, rows.columns(), &expected);
    CHECK_OK(Read(path, format, &content));
    CHECK(content.rows == expected);
    CHECK_EQ(content.removed.size(), n / 2);
    CHECK_EQ(content.waiting.size(), n / 2);
    CHECK(content.filter == filter);
    CHECK_EQ(content.blocks, writer.blocks());
    std::filesystem::remove(path);
  }
}

TEST(PartsOfNumbersAreFilledInPlace) {
  const Folder folder;
  std::mt19937_64 random(4);
  for (const size_t dim : {size_t{1}, size_t{32}, size_t{100'000}, size_t{400'000}}) {
    const RowFormat format{.dim = dim, .slot_bytes = 8 * dim, .metadata = true, .scores = true};
    const std::string path = folder / std::to_string(dim);
    PartWriter writer(path, kSnapshot, kPart, format);
    CHECK_OK(writer.Open());
    const size_t most = writer.Room().room;
    CHECK(most >= 1 && most <= kMaxBlockRows);
    CHECK(most == 1 || most * (12 * dim + 24) <= kMaxBlockBytes);
    std::vector<std::string> expected;
    for (const size_t n : {most, size_t{1}, size_t{0}, (most + 1) / 2}) {
      const Rows rows = RandomRows(format, n, 0, &random);
      const RowArrays room = writer.Room();
      CHECK_EQ(room.room, most);
      std::copy(rows.ints.begin(), rows.ints.end(), room.keys);
      std::copy(rows.values.begin(), rows.values.end(), room.values);
      std::copy(rows.slots.begin(), rows.slots.end(), room.slots);
      std::copy(rows.metadata.begin(), rows.metadata.end(), room.metadata);
      std::copy(rows.scores.begin(), rows.scores.end(), room.scores);
      CHECK_OK(writer.Commit(n));
      AddLines(format, rows.columns(), &expected);
    }
    CHECK_OK(writer.Finish());
    Content content;
    CHECK_OK(Read(path, format, &content));
    CHECK(content.rows == expected);
    CHECK_EQ(content.blocks, 4u);
  }
}

TEST(PartsOfLongStringsHaveARowInABlock) {
  const Folder folder;
  const RowFormat format{.key_type = KeyType::kString, .value_type = ValueType::kString};
  std::mt19937_64 random(5);
  const Rows rows = RandomRows(format, 12, 3 << 20, &random);
  PartWriter writer(folder / "long", kSnapshot, kPart, format);
  CHECK_OK(writer.Open());
  CHECK_OK(writer.WriteRows(rows.columns()));
  CHECK_OK(writer.Finish());
  CHECK(writer.blocks() > 6);
  std::vector<std::string> expected;
  AddLines(format, rows.columns(), &expected);
  Content content;
  CHECK_OK(Read(folder / "long", format, &content));
  CHECK(content.rows == expected);
}

TEST(PartsAreReadAsWhatTheyAre) {
  const Folder folder;
  const std::string path = folder / "part";
  SmallFile(path, kSmall, kSnapshot, kPart);
  Content content;
  CHECK_OK(Read(path, kSmall, &content));
  CHECK_EQ(content.blocks, 7u);
  const auto refused = [&](const Status& status, const char* said) {
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(status.message().find("part: block ") != std::string::npos);
    if (status.message().find(said) == std::string::npos) {
      std::printf("  %s\n", status.message().c_str());
      CHECK(false);
    }
  };
  refused(Read(path, kSmall, &content, kSnapshot + 1), "belongs to another snapshot");
  refused(Read(path, kSmall, &content, kSnapshot, kPart + 1), "belongs to part 7");
  for (const int change : {0, 1, 2, 3, 4}) {
    RowFormat other = kSmall;
    if (change == 0) other.dim = 3;
    if (change == 1) other.slot_bytes = 0;
    if (change == 2) other.key_type = KeyType::kString;
    if (change == 3) other.value_type = ValueType::kString;
    if (change == 4) other.scores = true;
    Content none;
    const Status status = Read(path, other, &none);
    // Columns are padded: a few rows that are a little wider take as much.
    if (change != 0) refused(status, "");
  }
  CHECK(Read(folder / "none", kSmall, &content).code() == StatusCode::kIoError);
  CHECK(Read(folder / "", kSmall, &content).code() == StatusCode::kIoError);
  PartWriter again(path, kSnapshot, kPart, kSmall);
  CHECK(again.Open().code() == StatusCode::kIoError);
}

// Every bit counts, and every byte that is missing.
TEST(PartsThatAreDamagedAreRefused) {
  const Folder folder;
  const std::string path = folder / "part";
  const std::string good = SmallFile(path, kSmall, kSnapshot, kPart);
  const auto refused = [&](const std::string& bytes) {
    Put(path, bytes);
    Content content;
    const Status status = Read(path, kSmall, &content);
    return status.code() == StatusCode::kInvalidArgument &&
           status.message().find(path + ": block ") == 0;
  };
  int taken = 0;
  for (size_t at = 0; at < good.size(); at += at % 4096 < 300 ? 1 : 97) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << at % 8));
    taken += !refused(bytes);
  }
  for (size_t size = 0; size < good.size(); size += size % 4096 < 70 ? 1 : 411) {
    taken += !refused(good.substr(0, size));
  }
  taken += !refused(good + '\0') + !refused(good + good) + !refused(good + std::string(4096, '\0'));
  // Blocks of 4096 bytes: missing, doubled, swapped, and those of other files.
  const size_t blocks = good.size() / kBlockAlign;
  CHECK_EQ(blocks, 7u);
  const auto block = [](const std::string& bytes, size_t i) {
    return bytes.substr(i * kBlockAlign, kBlockAlign);
  };
  const std::string part = SmallFile(folder / "other-part", kSmall, kSnapshot, kPart + 1);
  const std::string snapshot = SmallFile(folder / "other-snapshot", kSmall, kSnapshot + 1, kPart);
  for (size_t i = 0; i < blocks; ++i) {
    const std::string before = good.substr(0, i * kBlockAlign);
    const std::string after = good.substr((i + 1) * kBlockAlign);
    taken += !refused(before + after);
    taken += !refused(before + block(good, i) + block(good, i) + after);
    taken += !refused(before + block(part, i) + after);
    taken += !refused(before + block(snapshot, i) + after);
    for (size_t j = i + 1; j < blocks; ++j) {
      std::string swapped = good;
      swapped.replace(i * kBlockAlign, kBlockAlign, block(good, j));
      swapped.replace(j * kBlockAlign, kBlockAlign, block(good, i));
      taken += !refused(swapped);
    }
  }
  CHECK_EQ(taken, 0);
}

// Headers and columns that lie, with checksums that are right.
TEST(PartsOfStrangersDoNoHarm) {
  const Folder folder;
  const std::string path = folder / "part";
  std::mt19937_64 random(8);
  for (const RowFormat& format :
       {kSmall, RowFormat{.key_type = KeyType::kString, .value_type = ValueType::kString}}) {
    const std::string good = SmallFile(path, format, kSnapshot, kPart);
    const size_t blocks = good.size() / kBlockAlign;
    for (int round = 0; round < 3000; ++round) {
      std::string bytes = good;
      char* const block = bytes.data() + random() % blocks * kBlockAlign;
      BlockHeader header;
      std::memcpy(&header, block, sizeof(header));
      const uint64_t numbers[] = {0,
                                  1,
                                  64,
                                  4096,
                                  4097,
                                  1 << 20,
                                  UINT32_MAX,
                                  uint64_t{1} << 40,
                                  UINT64_MAX,
                                  random(),
                                  random() % 200};
      const uint64_t number = numbers[random() % std::size(numbers)];
      switch (random() % 4) {
        case 0:
          header.rows = static_cast<uint32_t>(number);
          break;
        case 1:
          header.bytes = random() % 2 ? number : number / 64 * 64;
          break;
        case 2:
          header.kind = static_cast<BlockKind>(number % 7);
          break;
        default: {  // Columns: ends of strings, or numbers.
          const uint32_t small = static_cast<uint32_t>(number);
          std::memcpy(block + sizeof(header) + random() % 64 * 4, &small, sizeof(small));
        }
      }
      if (header.bytes <= kBlockAlign - sizeof(header)) {
        header.columns_sum = Crc32c(block + sizeof(header), header.bytes);
      }
      header.header_sum = Crc32c(&header, kSummedHeader);
      std::memcpy(block, &header, sizeof(header));
      Put(path, bytes);
      Content content;
      const Status status = Read(path, format, &content);
      CHECK(status.ok() || status.code() == StatusCode::kInvalidArgument);
    }
    std::filesystem::remove(path);
  }
}

TEST(PartsHaveNoNumbersThatTablesDoNotHave) {
  const Folder folder;
  const auto refuses = [&](const RowFormat& format, const auto& write) {
    const std::string path = folder / "part";
    std::filesystem::remove(path);
    PartWriter writer(path, kSnapshot, kPart, format);
    CHECK_OK(writer.Open());
    CHECK_OK(write(&writer));
    CHECK_OK(writer.Finish());
    Content content;
    return Read(path, format, &content).code() == StatusCode::kInvalidArgument;
  };
  const int64_t key = int64_t{1} << 31;
  const float value = 1;
  const uint8_t two = 2;
  const RowMetadata never{5, 0};
  CHECK(refuses({.key_type = KeyType::kInt32}, [&](PartWriter* writer) {
    return writer->WriteRows({.keys = KeyBatch(&key, 1), .values = &value});
  }));
  CHECK(refuses({.value_type = ValueType::kBool}, [&](PartWriter* writer) {
    return writer->WriteRows({.keys = KeyBatch(&key, 1), .values = &two});
  }));
  CHECK(refuses(
      {}, [&](PartWriter* writer) { return writer->WriteWaiting(KeyBatch(&key, 1), &never); }));
}

TEST(PartsReportEveryCallThatFails) {
  const Folder folder;
  const std::string path = folder / "part";
  std::mt19937_64 random(9);
  const Rows rows = RandomRows(kSmall, 9000, 0, &random);
  const auto write = [&] {
    std::filesystem::remove(path);
    PartWriter writer(path, kSnapshot, kPart, kSmall);
    TFRA_RETURN_IF_ERROR(writer.Open());
    TFRA_RETURN_IF_ERROR(writer.WriteRows(rows.columns()));
    return writer.Finish();
  };
  const auto read = [&] {
    Content content;
    return Read(path, kSmall, &content);
  };
  for (const FileCall call :
       {FileCall::kCreate, FileCall::kWrite, FileCall::kSync, FileCall::kOpen, FileCall::kRead}) {
    const bool reads = call == FileCall::kOpen || call == FileCall::kRead;
    int failures = 0;
    for (;; ++failures) {
      FailFilesForTesting(call, failures);
      const Status status = reads ? read() : write();
      FailFilesForTesting(call, -1);
      if (status.ok()) break;
      CHECK(status.code() == StatusCode::kIoError);
      CHECK(status.message().find(path) != std::string::npos);
    }
    CHECK(failures > 0);
    CHECK_OK(read());
  }
}

}  // namespace tfra::test
