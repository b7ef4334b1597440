// Implements Sealing (sealing.h) for encrypted repositories, with the functions of seal.h.
#pragma once

#include <memory>

#include "repository/master_key.h"
#include "repository/sealing.h"

namespace stasis::repository {

std::unique_ptr<Sealing> EncryptedSealing(const MasterKey& master);

}  // namespace stasis::repository
