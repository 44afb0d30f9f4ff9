#include "create.h"

#include <cstring>
#include <sstream>

#include "kernels.h"
#include "op_context.h"

namespace tfra::tf {
namespace {

std::string StringAttribute(TF_OpKernelConstruction* construction, const char* name) {
  TfStatus status;
  int32_t list_size = 0, bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &bytes, status.get());
  status.Check();
  std::string value(static_cast<size_t>(bytes), '\0');
  TF_OpKernelConstruction_GetAttrString(construction, name, value.data(), value.size(),
                                        status.get());
  status.Check();
  return value;
}

int64_t IntAttribute(TF_OpKernelConstruction* construction, const char* name) {
  TfStatus status;
  int64_t value = 0;
  TF_OpKernelConstruction_GetAttrInt64(construction, name, &value, status.get());
  status.Check();
  return value;
}

TF_DataType TypeAttribute(TF_OpKernelConstruction* construction, const char* name) {
  TfStatus status;
  TF_DataType value = 0;
  TF_OpKernelConstruction_GetAttrType(construction, name, &value, status.get());
  status.Check();
  return value;
}

// Two hexadecimal digits per byte.
std::vector<std::byte> BytesOf(const std::string& digits) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// A double as its bytes.
double DoubleOf(const std::string& digits) {
  const std::vector<std::byte> bytes = BytesOf(digits);
  double number;
  if (bytes.size() != sizeof(number)) InvalidArgument("not the bytes of a double: " + digits);
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

// "zeros", "constant ROW", "uniform SEED LOW HIGH", "normal SEED MEAN STDDEV" or
// "truncated_normal SEED MEAN STDDEV". Rows and numbers are given as their bytes: no bit is lost,
// and no locale asked.
InitializerSpec InitializerOf(const std::string& text) {
  std::istringstream words(text);
  std::string kind, first, second;
  InitializerSpec spec;
  words >> kind;
  if (kind == "zeros") return spec;
  if (kind == "constant") {
    spec.kind = InitializerKind::kConstant;
    words >> first;
    spec.row = BytesOf(first);
    return spec;
  }
  words >> spec.seed >> first >> second;
  const double a = DoubleOf(first), b = DoubleOf(second);
  if (kind == "uniform") {
    spec.kind = InitializerKind::kUniform;
    spec.low = a;
    spec.high = b;
  } else if (kind == "normal" || kind == "truncated_normal") {
    spec.kind = kind == "normal" ? InitializerKind::kNormal : InitializerKind::kTruncatedNormal;
    spec.mean = a;
    spec.stddev = b;
  } else {
    InvalidArgument("unknown initializer: " + text);
  }
  return spec;
}

std::string Describe(TF_DataType key_dtype, const TableOptions& options) {
  return std::string(NameOf(key_dtype)) + " keys, " + NameOf(options.value_type) +
         " values and dim " + std::to_string(options.dim);
}

}  // namespace

std::shared_ptr<NamedTable> CreateKernel::Make() const {
  auto table = std::make_shared<NamedTable>();
  table->key_dtype = key_dtype;
  table->scalars = scalars;
  Check(Table::Create(options, &table->table));
  return table;
}

void CreateKernel::RequireSame(const NamedTable& table) const {
  const TableOptions& there = table.table->options();
  if (table.key_dtype == key_dtype && there.value_type == options.value_type &&
      there.dim == options.dim && table.scalars == scalars) {
    return;
  }
  InvalidArgument("expected a table with " + Describe(key_dtype, options) +
                  ", but the one of that name has " + Describe(table.key_dtype, there));
}

void* NewCreateKernel(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<CreateKernel>();
  try {
    kernel->key_dtype = TypeAttribute(construction, "key_dtype");
    TableOptions& options = kernel->options;
    options.key_type = kernel->key_dtype == TF_STRING ? KeyType::kString : KeyType::kInt64;
    options.value_type = ValueTypeOf(TypeAttribute(construction, "value_dtype"));
    const int64_t dim = IntAttribute(construction, "dim");
    kernel->scalars = dim == 0;
    options.dim = kernel->scalars ? 1 : dim;
    options.initial_capacity = IntAttribute(construction, "capacity");
    options.initializer = InitializerOf(StringAttribute(construction, "initializer"));
  } catch (const std::exception& error) {
    TfStatus status;
    TF_SetStatus(status.get(), TF_INVALID_ARGUMENT, error.what());
    TF_OpKernelConstruction_Failure(construction, status.get());
  }
  return kernel.release();
}

void DeleteCreateKernel(void* kernel) { delete static_cast<CreateKernel*>(kernel); }

}  // namespace tfra::tf
