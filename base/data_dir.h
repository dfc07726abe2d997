#pragma once
/// Where the data that Orrery ships (catalogs, profiles) is at run time.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery::base {

/// Places searched, in order: $ORRERY_DATA when set, <folder of the executable>/../share/orrery,
/// the source tree this binary was built from.
[[nodiscard]] std::vector<std::filesystem::path> data_roots();

/// `data_file("topologies/catalog/dgx-a100.yaml")`: first root that has the file.
/// Error: kNotFound, with a "did you mean" over the names in the same folder.
[[nodiscard]] Result<std::filesystem::path> data_file(std::string_view relative);

/// Names (without folder) of the files in a data folder whose extension is `extension` (".yaml"),
/// over all roots, sorted, without duplicates. Empty when no root has the folder.
[[nodiscard]] std::vector<std::string> list_data_files(std::string_view folder,
                                                       std::string_view extension);

/// The files of one kind that ship in one folder; their names are known without the extension.
struct Catalog {
  std::string_view folder, extension;

  /// In the order of the files.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] Result<std::filesystem::path> file(std::string_view name) const;
  /// Whether a user's word for such a file is a path: it contains '/' or ends in the extension.
  [[nodiscard]] bool is_path(std::string_view word) const {
    return word.find('/') != std::string_view::npos || word.ends_with(extension);
  }
};

}  // namespace orrery::base
