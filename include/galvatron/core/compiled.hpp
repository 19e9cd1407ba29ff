// Functions that galvatron::planner and galvatron::trainer have compiled, so that units of programs that link them do
// not compile them again. Such a function is a template without parameters of its own, marked where it is defined:
//
//   template <class = void>
//   Result<Plan> parse_plan(std::string_view text) { ... }
//   GALVATRON_IN_PLANNER(Result<Plan> parse_plan<>(std::string_view))
//
// The CMake targets define GALVATRON_LINKS_PLANNER and GALVATRON_LINKS_TRAINER for those that link them. Without these
// the mark says nothing, and headers are all that a program takes.
#pragma once

#if defined(GALVATRON_COMPILES_PLANNER)  // planner/planner.cpp
#define GALVATRON_IN_PLANNER(...) template __VA_ARGS__;
#elif defined(GALVATRON_LINKS_PLANNER)
#define GALVATRON_IN_PLANNER(...) extern template __VA_ARGS__;
#else
#define GALVATRON_IN_PLANNER(...)
#endif

#if defined(GALVATRON_COMPILES_TRAINER)  // trainer/host.cpp
#define GALVATRON_IN_TRAINER(...) template __VA_ARGS__;
#elif defined(GALVATRON_LINKS_TRAINER)
#define GALVATRON_IN_TRAINER(...) extern template __VA_ARGS__;
#else
#define GALVATRON_IN_TRAINER(...)
#endif
