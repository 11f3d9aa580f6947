//! Reads and checks `upstream_tls`: TLS towards services.

use std::path::PathBuf;

use rustls::pki_types::ServerName;
use sha2::{Digest, Sha256};

use super::options::options;
use super::reader::Section;
use super::tls::{read_pair, report};
use oncegate_settings::UpstreamTlsConfig;
use oncegate_trust::tls::{self, Authorities, CertificateFileError, ClientIdentity, Trust};

options! {
    struct UpstreamTlsOptions {
        /// a PEM file: the authorities of services' certificates; empty for the system's
        ca: Text = "" => String, file_name();
        /// a PEM file: the certificate that is shown to services, and its chain
        certificate: Text = "" => String, file_name();
        /// a PEM file: that certificate's private key
        key: Text = "" => String, file_name();
        /// the name that a service's certificate must be for; empty for the URL's host
        server_name: Text = "" => Option<ServerName<'static>>, optional(parse_server_name);
    }
}

fn parse_server_name(text: &str) -> Result<ServerName<'static>, String> {
    let name = ServerName::try_from(text.to_owned());
    name.map_err(|_| "is no name that a certificate can have: write a DNS name or an address".into())
}

/// Reads the whole table. Without a service that is called over TLS, the authorities of the system are not needed.
pub(super) fn read(section: &Section<'_>, is_needed: bool) -> Option<UpstreamTlsConfig> {
    let UpstreamTlsOptions { ca, certificate, key, server_name } = UpstreamTlsOptions::read(section);
    if !section.is_right(&["ca", "certificate", "key"]) {
        return None;
    }
    let authorities = match &*ca {
        "" if is_needed => section.reader().system_authorities().clone(),
        "" => Authorities::empty(),
        path => {
            let parsed = Authorities::parse(section.file("ca", path)?.as_bytes());
            parsed.map_err(|message| section.file_problem("ca", path, &message)).ok()?
        }
    };
    let pair = read_pair(section, &certificate, &key)?;
    let mut digest = Sha256::new_with_prefix(authorities.digest);
    pair.iter().flatten().for_each(|text| digest.update(Sha256::digest(text)));
    let identity = pair.map(|[chain, secret]| parse_identity(&chain, &secret)).transpose();
    let trust = identity.and_then(|identity| Trust::with_identity(&authorities, identity, digest.finalize().into()));
    let trust = trust.map_err(|error| report(section, &certificate, &key, error)).ok()?;
    let path = |name: &str, text: String| (!text.is_empty()).then(|| section.locate(name, text));
    let is_exposed = |key: &PathBuf| section.reader().environment().is_readable_by_all(key);
    let exposed_key = path("key", key).filter(is_exposed);
    let (authorities, certificate) = (path("ca", ca), path("certificate", certificate));
    Some(UpstreamTlsConfig { trust, server_name, authorities, certificate, exposed_key, is_public: false })
}

fn parse_identity(chain: &str, key: &str) -> Result<ClientIdentity, CertificateFileError> {
    Ok(ClientIdentity {
        chain: tls::parse_certificates(chain.as_bytes()).map_err(CertificateFileError::Certificate)?,
        key: tls::parse_private_key(key.as_bytes()).map_err(CertificateFileError::Key)?,
    })
}

#[cfg(test)]
mod tests {
    use crate::environment::FakeEnvironment;
    use crate::{ConfigProblems, Overrides, load};
    use oncegate_settings::LoadedConfig;

    fn config(lines: &str) -> Result<LoadedConfig, ConfigProblems> {
        let file = format!("upstream = 'https://a'\n{lines}");
        let environment = FakeEnvironment { readable_by_all: true, ..FakeEnvironment::default() };
        let environment = environment.with_file("f", &file).with_file("text.pem", "text");
        load(Some("f".as_ref()), &Overrides::default(), &environment)
    }

    #[test]
    fn a_wrong_file_or_name_is_reported_where_it_is_written() {
        let route = |lines: &str| format!("[[routes]]\nname = 'r'\npath = '/'\nupstream_tls = {{ {lines} }}");
        for (lines, path, message) in [
            ("upstream_tls.ca = 'none.pem'", "upstream_tls.ca", "cannot be read"),
            ("upstream_tls.ca = 'text.pem'", "upstream_tls.ca", "has no certificate"),
            ("upstream_tls.key = 'text.pem'", "upstream_tls.key", "needs a `certificate`"),
            ("upstream_tls.certificate = 'text.pem'", "upstream_tls.certificate", "needs a `key`"),
            (
                "upstream_tls = { certificate = 'text.pem', key = 'text.pem' }",
                "upstream_tls.certificate",
                "/text.pem` has no",
            ),
            ("upstream_tls.server_name = 'a b'", "upstream_tls.server_name", "is no name"),
            ("defaults.upstream_tls.ca = 'none.pem'", "defaults.upstream_tls.ca", "cannot be read"),
            (&route("key = 'text.pem'"), "routes[0].upstream_tls.key", "needs a `certificate`"),
        ] {
            let problems = config(lines).expect_err(lines);
            let found: Vec<_> = problems.iter().collect();
            assert_eq!(found.len(), 1, "{lines}: {problems}");
            assert!(found[0].path == path && found[0].message.contains(message), "{lines}: {problems}");
        }
    }

    #[test]
    fn a_routes_own_keys_replace_those_of_the_top_one_by_one() {
        let config = config(
            "upstream_tls.server_name = 'top.example'\n[[routes]]\nname = 'own'\npath = '/own'\n\
             upstream_tls.server_name = 'own.example'\n[[routes]]\nname = 'none'\npath = '/none'\n\
             upstream_tls.server_name = ''\n[[routes]]\nname = 'top'\npath = '/top'\nreconcile.url = 'https://b/{id}'",
        )
        .unwrap();
        let name = |tls: &super::UpstreamTlsConfig| tls.server_name.as_ref().map(|name| name.to_str().into_owned());
        let of_routes = config.live.routes.iter().map(|route| &route.upstream_tls);
        let names: Vec<_> = std::iter::once(&config.live.services[0].tls).chain(of_routes).map(name).collect();
        let [top, own] = ["top.example", "own.example"].map(|name| Some(name.to_owned()));
        assert_eq!(names, [top.clone(), own, None, top]);
        // Probes may lead elsewhere.
        let route = &config.live.routes[2];
        assert_eq!(name(&route.tls_towards(&route.reconcile.as_ref().unwrap().lookup.upstream)), None);
    }
}
