// The sealing of encrypted repositories (sealing.h), by seal.h.
#pragma once

#include <memory>

#include "repository/master_key.h"
#include "repository/sealing.h"

namespace stasis::repository {

std::unique_ptr<Sealing> EncryptedSealing(const MasterKey& master);

}  // namespace stasis::repository
