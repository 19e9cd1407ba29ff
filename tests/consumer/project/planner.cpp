// A separate program that plans, with nothing but galvatron's header-only part.
#include <galvatron/core/quantity.hpp>

int main() { return galvatron::parse_bytes("16GiB") ? 0 : 1; }
