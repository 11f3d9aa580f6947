//! The connection to the brokers of a cluster, of the crate krafka.

use std::time::Duration;

use krafka::auth::{AuthConfig, TlsConfig};
use krafka::{Kafka, KrafkaError};

use oncegate_settings::{KafkaCluster, KafkaLogin, SaslMechanism};

/// The time limit of a request. A broker answers in milliseconds; it is away, and another one leads, after this.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to a cluster.
///
/// # Errors
/// The cause, without the user and the password.
pub async fn connect(cluster: &KafkaCluster) -> Result<Kafka, String> {
    let kafka = Kafka::builder(cluster.brokers.join(","))
        .client_id("oncegate")
        .security(security(cluster))
        .request_timeout(REQUEST_TIMEOUT);
    kafka.connect().await.map_err(describe)
}

fn security(cluster: &KafkaCluster) -> AuthConfig {
    let tls = cluster.tls.as_ref().map(|tls| {
        let config = match &tls.authorities {
            Some(pem) => TlsConfig::new().with_ca_cert_pem(pem.as_bytes()),
            None => TlsConfig::new().with_native_roots(),
        };
        match &tls.identity {
            Some([chain, key]) => config.with_client_cert_pem(chain.as_bytes(), key.as_bytes().to_vec()),
            None => config,
        }
    });
    let login = cluster.login.as_ref().map(|KafkaLogin { mechanism, user, password }| match mechanism {
        SaslMechanism::None => AuthConfig::plaintext(),
        SaslMechanism::Plain => AuthConfig::sasl_plain(&**user, &**password),
        SaslMechanism::ScramSha256 => AuthConfig::sasl_scram_sha256(&**user, &**password),
        SaslMechanism::ScramSha512 => AuthConfig::sasl_scram_sha512(&**user, &**password),
    });
    match (login, tls) {
        (None, None) => AuthConfig::plaintext(),
        (None, Some(tls)) => AuthConfig::ssl(tls),
        (Some(login), None) => login,
        (Some(login), Some(tls)) => login.with_tls(tls),
    }
}

/// The error with its causes.
pub fn describe(error: KrafkaError) -> String {
    oncegate_telemetry::logs::format_chain(&error)
}
