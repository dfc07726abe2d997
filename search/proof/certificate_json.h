#pragma once
/// \file
/// Certificates as documents, schema `orrery.certificate/1` (docs/schemas.md).
#include "base/config.h"
#include "base/json_fwd.h"
#include "search/proof/certificate.h"
#include "search/proof/certificate_check.h"

namespace orrery::search {

base::Json to_json(const Certificate& certificate);
/// What a document claims, for the checker. Faults go into the sink. A certificate without
/// multipliers claims no bound of theirs.
PlanClaim read_certificate(const base::Node& root, base::ErrorSink& sink);

/// What somebody claims who has the certificate itself.
PlanClaim claim_of(const Certificate& certificate);

}  // namespace orrery::search
