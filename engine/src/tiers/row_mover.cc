#include "tiers/row_mover.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/batch.h"
#include "keys/key_groups.h"

namespace tfra {
namespace {

// How many rows move to the file at a time, if the share of a stripe is large enough: so that one
// write contains many rows.
constexpr uint64_t kDemoteRows = 256;
// One reading call moves at most this part of a stripe's rows in memory: share / kPromotedShare.
constexpr uint64_t kPromotedShare = 8;
// How many rows or buckets ahead to prefetch.
constexpr size_t kAhead = 4;
// The most buckets to look at while the mutex is held.
constexpr uint64_t kBucketsPerLock = 16384;

// Memory for rows that are being read. Each thread keeps its own, since fresh memory costs more
// than copying.
Staging& ThisStaging() {
  thread_local Staging staging;
  return staging;
}

}  // namespace

void RowMover::MoveEntry(Stripe::Entry entry, uint32_t row_id) const {
  const uint32_t state = entry.bucket->BeginWrite();
  entry.bucket->rows[entry.index].store(row_id, std::memory_order_relaxed);
  entry.bucket->EndWrite(state);
}

Status RowMover::ReadSlow(std::vector<SlowRow>* rows, size_t bytes,
                          const std::function<void(const std::vector<SlowRow>&)>& use) const {
  Staging& staging = ThisStaging();
  const size_t most = state_.tiers->records().batch_rows();
  std::vector<SlowRow> batch;
  for (size_t begin = 0; begin < rows->size(); begin += most) {
    const auto first = rows->begin() + static_cast<std::ptrdiff_t>(begin);
    batch.assign(first, first + static_cast<std::ptrdiff_t>(std::min(most, rows->size() - begin)));
    TFRA_RETURN_IF_ERROR(state_.tiers->records().Read(&batch, bytes, &staging));
    use(batch);
  }
  return Status::Ok();
}

Status RowMover::UseSlow(const KeyBits& bits, std::vector<SlowRow>* rows, size_t bytes,
                         const UseRow& use) const {
  SortByRecord(rows);
  // Most rows in the file are needed only once in a long while. So a row that is read moves to
  // memory only if it was needed before, or if at least half of the memory is free.
  std::vector<SlowRow> coming;
  std::array<uint64_t, kStripes> coming_of{};
  size_t staying = 0;
  for (SlowRow& row : *rows) {
    row.seen = state_.tiers->SeenBefore(row.record);
    const uint32_t s = StripeOf(state_.HashOf(bits[row.number]));
    if (row.seen || FastRows(s) + coming_of[s] < state_.tiers->share() / 2) {
      coming.push_back(row);
      ++coming_of[s];
    } else {
      (*rows)[staying++] = row;
    }
  }
  rows->resize(staying);
  TFRA_RETURN_IF_ERROR(ReadSlow(rows, bytes, [&](const std::vector<SlowRow>& batch) {
    for (const SlowRow& row : batch) use(row);
  }));
  return ReadSlow(&coming, state_.layout.stride, [&](const std::vector<SlowRow>& batch) {
    for (const SlowRow& row : batch) use(row);
    Promote(bits, batch, Promotion::kIfRoom);
  });
}

Status RowMover::FetchSlow(const KeyBits& bits, std::vector<SlowRow>* rows) const {
  SortByRecord(rows);
  for (SlowRow& row : *rows) row.seen = state_.tiers->SeenBefore(row.record);
  return ReadSlow(rows, state_.layout.stride, [&](const std::vector<SlowRow>& batch) {
    Promote(bits, batch, Promotion::kAlways);
  });
}

void RowMover::Promote(const KeyBits& bits, const std::vector<SlowRow>& rows,
                       Promotion promotion) const {
  std::array<std::vector<const SlowRow*>, kStripes> by_stripe;
  for (const SlowRow& row : rows)
    by_stripe[StripeOf(state_.HashOf(bits[row.number]))].push_back(&row);
  for (uint32_t s = 0; s < kStripes; ++s) {
    std::vector<const SlowRow*>& list = by_stripe[s];
    if (list.empty()) continue;
    // A large batch must not push rows out of memory that are needed more often.
    const size_t most = std::max<size_t>(1, state_.tiers->share() / kPromotedShare);
    if (promotion == Promotion::kIfRoom && list.size() > most) list.resize(most);
    Stripe& stripe = state_.stripes[s];
    RowTiers::StripeTier& tier = state_.tiers->stripe(s);
    // If no room can be made, the rows stay in the file, which is no failure: they have been read.
    if (promotion == Promotion::kIfRoom && !MakeFastRoom(s, list.size(), false).ok()) continue;
    std::lock_guard lock(stripe.mutex());
    for (size_t k = 0; k < list.size(); ++k) {
      if (k + kAhead < list.size()) {
        __builtin_prefetch(stripe.array()->Home(state_.HashOf(bits[list[k + kAhead]->number])), 1);
      }
      const SlowRow* row = list[k];
      if (promotion == Promotion::kIfRoom && FastRows(s) >= state_.tiers->share()) break;
      const uint64_t key_bits = bits[row->number];
      const auto entry = stripe.Find(key_bits, state_.HashOf(key_bits), [&](uint32_t row_id) {
        return row_id == (row->record | kSlowRow);
      });
      if (!entry) continue;  // The row moved, or the key left, meanwhile.
      uint32_t row_id;
      if (!state_.TakeRow(&stripe, &row_id).ok()) break;
      EditRow(state_.RowAt(row_id), state_.layout.stride,
              [&](std::byte* to) { std::memcpy(to, row->row, state_.layout.stride); });
      state_.tiers->Mark(row_id) = row->record;
      // Rows that a writing call fetches stay in memory until the call writes them.
      const bool fetched = promotion == Promotion::kAlways;
      state_.tiers->SetRecency(row_id, row->seen ? 1 : fetched ? RowTiers::kFetched : 0);
      MoveEntry(entry, row_id);
      tier.slow.fetch_sub(1, std::memory_order_relaxed);
    }
  }
}

Status RowMover::RowToWrite(Stripe* stripe, Stripe::Entry entry, bool changes,
                            std::byte** row) const {
  uint32_t row_id = entry.row();
  if (state_.IsSlow(row_id)) {
    const uint32_t record = RecordOf(row_id);
    std::vector<SlowRow> rows = {{0, record}};
    Staging& staging = ThisStaging();
    TFRA_RETURN_IF_ERROR(state_.tiers->records().Read(&rows, state_.layout.stride, &staging));
    TFRA_RETURN_IF_ERROR(state_.TakeRow(stripe, &row_id));
    EditRow(state_.RowAt(row_id), state_.layout.stride,
            [&](std::byte* to) { std::memcpy(to, rows[0].row, state_.layout.stride); });
    state_.tiers->Mark(row_id) = record;
    MoveEntry(entry, row_id);
    state_.tiers->stripe(stripe->number()).slow.fetch_sub(1, std::memory_order_relaxed);
  }
  if (state_.tiers != nullptr && changes) state_.tiers->NoteWrite(row_id);
  *row = state_.RowAt(row_id);
  return Status::Ok();
}

Status RowMover::MakeFastRoom(uint32_t s, uint64_t rows, bool wait, bool* demoted) const {
  const uint64_t share = state_.tiers->share();
  RowTiers::StripeTier& tier = state_.tiers->stripe(s);
  const auto excess = [&] {
    const uint64_t wanted = FastRows(s) + std::min(rows, share);
    return wanted > share ? wanted - share : 0;
  };
  if (excess() == 0) return Status::Ok();
  // In a forked child no row moves to the file, since it could not be read again.
  TFRA_RETURN_IF_ERROR(state_.tiers->records().file().CheckProcess());
  std::unique_lock demoting(tier.demoting, std::defer_lock);
  if (wait) {
    demoting.lock();
  } else if (!demoting.try_lock()) {
    return Status::Ok();
  }
  const uint64_t count = excess();
  if (count == 0) return Status::Ok();
  if (demoted != nullptr) *demoted = true;
  return Demote(s, std::max(count, std::min(kDemoteRows, share / 8)));
}

uint64_t RowMover::FindVictims(uint32_t s, size_t count, std::vector<Victim>* victims) const {
  const BucketArray& array = *state_.stripes[s].array();
  uint64_t& hand = state_.tiers->stripe(s).hand;
  // In a bounded table, find twice as many rows and choose those with the lower scores.
  const size_t wanted = state_.bounds == nullptr ? count : 2 * count;
  victims->clear();
  // Look at no bucket twice, or rows would be found twice.
  const uint64_t most = std::min(kBucketsPerLock, array.count);
  uint64_t looked = 0;
  for (; looked < most && victims->size() < wanted; ++looked) {
    if (++hand >= array.count) hand = 0;
    Bucket* bucket = array.buckets + hand;
    const uint32_t state = bucket->state.load(std::memory_order_relaxed);
    // Without branches, which a CPU could not predict.
    uint32_t slow = 0;
    for (uint32_t i = 0; i < kBucketEntries; ++i) {
      slow |= (bucket->rows[i].load(std::memory_order_relaxed) >> 31) << i;
    }
    static_assert(kSlowRow == uint32_t{1} << 31);
    for (uint32_t fast = state & Bucket::kUsed & ~slow; fast != 0; fast &= fast - 1) {
      const Stripe::Entry entry{bucket, static_cast<uint32_t>(__builtin_ctz(fast))};
      const uint32_t row = entry.row();
      if (const uint8_t recency = state_.tiers->Recency(row); recency > 0) {
        state_.tiers->Cool(row, recency);
        continue;
      }
      const uint64_t score = state_.bounds == nullptr ? 0 : *array.ScoreOf(bucket, entry.index);
      victims->push_back({entry, row, score, entry.key_bits()});
    }
  }
  if (victims->size() > count) {
    const auto end = victims->begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(victims->begin(), end, victims->end(),
                     [](const Victim& a, const Victim& b) { return a.score < b.score; });
    victims->resize(count);
  }
  return looked;
}

Status RowMover::Demote(uint32_t s, uint64_t count) const {
  Stripe& stripe = state_.stripes[s];
  RowTiers::StripeTier& tier = state_.tiers->stripe(s);
  const size_t batch = std::min<size_t>(state_.tiers->records().batch_rows(), kDemoteRows);
  std::vector<Victim> victims, dirty;
  thread_local Staging rows;   // Not ThisStaging(): a caller may be using its rows.
  std::vector<uint32_t> left;  // Old records of rows that have changed.
  // After this many buckets the recency of all rows is 0, unless other threads use them meanwhile.
  uint64_t looks = (RowTiers::kMaxRecency + 2) * (stripe.bucket_count() + 1);
  Status status;
  for (uint64_t done = 0; done < count && looks > 0 && status.ok();) {
    dirty.clear();
    left.clear();
    {
      std::lock_guard lock(stripe.mutex());
      const uint64_t looked = FindVictims(s, std::min<uint64_t>(batch, count - done), &victims);
      looks -= std::min(looks, looked);
      GrowBy(&stripe.free_rows(), victims.size());
      left.reserve(victims.size());
      dirty.reserve(victims.size());
      if (const size_t bytes = victims.size() * state_.layout.stride; rows.size() < bytes) {
        rows.resize(bytes);
      }
      for (size_t k = 0; k < victims.size(); ++k) {
        if (k + kAhead < victims.size()) {
          Prefetch<false>(state_.RowAt(victims[k + kAhead].row), state_.layout.stride);
        }
        const Victim& victim = victims[k];
        uint32_t& mark = state_.tiers->Mark(victim.row);
        if (RowTiers::IsClean(mark)) {
          if (state_.has_string_keys()) state_.tiers->SetKey(mark, state_.KeyOf(victim.row));
          MoveEntry(victim.entry, mark | kSlowRow);
          mark = RowTiers::kNoRecord | RowTiers::kDirty;
          stripe.GiveRow(victim.row);
          tier.slow.fetch_add(1, std::memory_order_relaxed);
          continue;
        }
        if (const uint32_t record = RowTiers::OwnRecord(mark); record != RowTiers::kNoRecord) {
          left.push_back(record);
        }
        mark = RowTiers::kNoRecord | RowTiers::kWriting;
        LoadRow(rows.data() + dirty.size() * state_.layout.stride, state_.RowAt(victim.row),
                state_.layout.stride);
        dirty.push_back(victim);
      }
    }
    done += victims.size();
    if (!left.empty()) state_.tiers->records().RetireRecords(std::move(left));
    if (!dirty.empty()) status = WriteVictims(s, dirty, rows.data());
  }
  return status;
}

Status RowMover::WriteVictims(uint32_t s, const std::vector<Victim>& victims,
                              const std::byte* rows) const {
  Stripe& stripe = state_.stripes[s];
  RowRecords& records = state_.tiers->records();
  Status status;
  for (size_t begin = 0; begin < victims.size();) {
    RowRecords::Reservation reservation;
    size_t count = victims.size() - begin;
    if (status.ok()) {
      status = records.TakeRecords(static_cast<uint32_t>(count), &reservation);
      if (status.ok()) {
        count = reservation.count();
        status = state_.tiers->CoverRecord(reservation.record(reservation.count() - 1));
        if (status.ok()) status = records.Write(reservation, rows + begin * state_.layout.stride);
      }
    }
    std::lock_guard lock(stripe.mutex());
    GrowBy(&stripe.free_rows(), count);
    for (size_t k = 0; k < count; ++k) {
      const Victim& victim = victims[begin + k];
      // The key may have left the table, and another key may have its row.
      const auto entry = stripe.Find(victim.key_bits, state_.HashOf(victim.key_bits),
                                     [&](uint32_t row_id) { return row_id == victim.row; });
      uint32_t& mark = state_.tiers->Mark(victim.row);
      if (status.ok() && entry && mark == (RowTiers::kNoRecord | RowTiers::kWriting)) {
        const uint32_t record = reservation.Take(static_cast<uint32_t>(k));
        if (state_.has_string_keys()) state_.tiers->SetKey(record, state_.KeyOf(victim.row));
        MoveEntry(entry, record | kSlowRow);
        mark = RowTiers::kNoRecord | RowTiers::kDirty;
        stripe.GiveRow(victim.row);
        state_.tiers->stripe(s).slow.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      if (entry && (mark & RowTiers::kWriting)) mark = RowTiers::kNoRecord | RowTiers::kDirty;
    }
    begin += count;
  }
  return status;
}

Status RowMover::FillRows(std::vector<SlowRow>* rows, ExportBatch* batch) const {
  if (rows->empty()) return Status::Ok();
  SortByRecord(rows);
  const size_t most = state_.tiers->records().batch_rows();
  SharedStatus status;
  ParallelFor((rows->size() + most - 1) / most, static_cast<size_t>(NumThreads()),
              [&](size_t part) {
                const auto first = rows->begin() + static_cast<std::ptrdiff_t>(part * most);
                const size_t count = std::min(most, rows->size() - part * most);
                std::vector<SlowRow> some(first, first + static_cast<std::ptrdiff_t>(count));
                status.Set(ReadSlow(&some, state_.layout.stride, [&](const auto& read) {
                  for (const SlowRow& slow : read) {
                    const size_t i = slow.number;
                    std::memcpy(batch->values.data() + i * state_.layout.value_bytes, slow.row,
                                state_.layout.value_bytes);
                    if (state_.layout.slots_bytes == 0) continue;
                    std::memcpy(batch->slots.data() + i * state_.layout.slots_bytes,
                                slow.row + state_.layout.slots_offset, state_.layout.slots_bytes);
                  }
                }));
              });
  return status.Get();
}

}  // namespace tfra
