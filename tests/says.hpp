#pragma once

#include <string_view>

namespace galvatron {

/// Whether a text has this part, for tests of what messages say.
inline bool says(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace galvatron
