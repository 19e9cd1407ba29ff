// A separate program that links galvatron::host.
#include <galvatron/core/quantity.hpp>
#include <oneapi/dnnl/dnnl.hpp>

int main() { return dnnl::engine::get_count(dnnl::engine::kind::cpu) == 1 ? 0 : 1; }
