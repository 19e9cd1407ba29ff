// A build without the trainer: it plans.
#include <string>

#include <galvatron/core/text.hpp>

#include "../commands.hpp"
#include "../plans.hpp"

namespace galvatron::tools {

namespace {

[[noreturn]] void refuse_here(const std::string& what) {
  refuse(what,
         ": this galvatron plans, and was built without oneDNN, with which it trains; use the Debian package, or ",
         "install libdnnl-dev and build it");
}

}  // namespace

const bool has_trainer = false;

Cluster host_before_profile(int) { refuse_here("--cluster host"); }

void run_profile(const Arguments&, Common&) { refuse_here("profile"); }
void run_train(const Arguments&, Common&) { refuse_here("train"); }
void run_generate(const Arguments&, Common&) { refuse_here("generate"); }
void run_evaluate(const Arguments&, Common&) { refuse_here("evaluate"); }
void run_moe(const Arguments&, Common&) { refuse_here("moe"); }

}  // namespace galvatron::tools
