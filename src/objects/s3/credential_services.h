// Credentials from services on the network: STS, the container's endpoint, EC2's metadata service.
#pragma once

#include <string>

#include "objects/s3/credentials.h"

namespace stasis::objects::s3 {

struct ServiceCall {
  const CredentialOptions& options;
  HttpEngine& engine;
  const CallOptions& limits;
};

// Exchanges a token at STS. Uses AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN and
// AWS_ROLE_SESSION_NAME.
Found FromWebIdentity(const ServiceCall& call);
Result<Credentials> AssumeRoleWithWebIdentity(const ServiceCall& call,
                                              const std::string& token_file,
                                              const std::string& role_arn,
                                              const std::string& session_name);

// Parses the answer of STS, which may be an error. `what` names the service in errors.
Result<Credentials> ParseStsAnswer(const HttpAnswer& answer, const std::string& what);

// Asks the container's endpoint. Uses AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI, with
// AWS_CONTAINER_AUTHORIZATION_TOKEN or _TOKEN_FILE. A full URI must be https, or be on this host or
// at the addresses of ECS and EKS.
Found FromContainer(const ServiceCall& call);

// Asks version 2 of EC2's metadata service. Finds nothing if the service does not answer within a
// second, or if AWS_EC2_METADATA_DISABLED is true.
Found FromMetadata(const ServiceCall& call);

}  // namespace stasis::objects::s3
