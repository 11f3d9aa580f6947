//! Reads and checks `[tls]`: the certificate for clients.

use super::options::options;
use super::reader::Section;
use oncegate_settings::{TlsConfig, Word};
use oncegate_trust::tls::{self, CertificateFileError, ClientCertificates};

options! {
    struct TlsOptions {
        /// a PEM file: the certificate, and behind it those up to its authority
        certificate: Text = "" => String, file_name();
        /// a PEM file: the certificate's private key
        key: Text = "" => String, file_name();
        /// a PEM file: the authorities of clients' certificates; empty to ask for none
        client_ca: Text = "" => String, file_name();
        /// a client without a certificate: refuse its connection, or serve it
        client: Choice(ClientCertificates::WORDS) = "required" => ClientCertificates, choice();
    }
}

/// Reads `[tls]`; `Some(None)` for cleartext.
pub(super) fn read(section: &Section<'_>) -> Option<Option<TlsConfig>> {
    let TlsOptions { certificate, key, client_ca, client } = TlsOptions::read(section);
    if !section.is_right(&["certificate", "key", "client_ca", "client"]) {
        return None;
    }
    if certificate.is_empty() && key.is_empty() {
        if client_ca.is_empty() {
            return Some(None);
        }
        section.problem("client_ca", "needs `certificate` and `key` beside it");
        return None;
    }
    let pair = read_pair(section, &certificate, &key);
    let authorities = if client_ca.is_empty() { None } else { Some(section.file("client_ca", &client_ca)?) };
    let [chain, secret] = pair??;
    let verifier = authorities.map(|text| tls::client_verifier(text.as_bytes(), client)).transpose();
    let verifier = verifier.map_err(|message| section.file_problem("client_ca", &client_ca, &message)).ok()?;
    let server = tls::server_config(chain.as_bytes(), secret.as_bytes(), verifier);
    let server = server.map_err(|error| report(section, &certificate, &key, error)).ok()?;
    let clients = (!client_ca.is_empty()).then(|| (section.locate("client_ca", client_ca), client));
    let [certificate, key] =
        [("certificate", certificate), ("key", key)].map(|(name, path)| section.locate(name, path));
    let readable_by_all = section.reader().environment().is_readable_by_all(&key);
    Some(Some(TlsConfig { certificate, key, clients, server, readable_by_all }))
}

/// Reads the files of the options `certificate` and `key`: `Some(None)` where neither is written.
pub(super) fn read_pair(section: &Section<'_>, certificate: &str, key: &str) -> Option<Option<[String; 2]>> {
    let (written, missing) = match (certificate.is_empty(), key.is_empty()) {
        (true, true) => return Some(None),
        (false, false) => {
            let [chain, secret] =
                [("certificate", certificate), ("key", key)].map(|(name, path)| section.file(name, path));
            return Some(Some([chain?, secret?]));
        }
        (true, false) => ("key", "certificate"),
        (false, true) => ("certificate", "key"),
    };
    section.problem(written, format!("needs a `{missing}` beside it"));
    None
}

/// Reports the problem of such a file.
pub(super) fn report(section: &Section<'_>, certificate: &str, key: &str, error: CertificateFileError) {
    let (name, path, message) = match error {
        CertificateFileError::Certificate(message) => ("certificate", certificate, message),
        CertificateFileError::Key(message) => ("key", key, message),
    };
    section.file_problem(name, path, &message);
}
