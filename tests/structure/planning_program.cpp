// The smallest program that plans; how long it compiles and what it reaches is tested.
#include <galvatron/plan.hpp>

int main() {}
