//! The name of a client, by its certificate. The certificate has been verified: rustls shows no other one.

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// The name of a client as a part of a scope: a letter for its kind, then the names of this kind, each with its length
/// before it. The same text of two kinds is two callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateName(Box<[u8]>);

impl CertificateName {
    /// Reads the URIs among the subject's alternative names, else its DNS names, else the subject. Several names of a
    /// kind are one caller together, in any order: the first of them may be another one after a renewal. `None` if the
    /// certificate has no name, or one that cannot be read.
    pub fn read(certificate: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let names = certificate.subject_alternative_name().ok()?;
        let names = names.map_or(&[][..], |names| &names.value.general_names);
        let (mut uris, mut hosts) = (Vec::new(), Vec::new());
        for name in names {
            match name {
                GeneralName::URI(uri) => uris.push(uri.as_bytes().to_vec()),
                GeneralName::DNSName(host) => hosts.push(host.to_ascii_lowercase().into_bytes()),
                // Without it, the certificate would have the name of another kind.
                GeneralName::Invalid(..) => return None,
                _ => {}
            }
        }
        let subject = certificate.subject();
        match (uris.is_empty(), hosts.is_empty()) {
            (false, _) => Some(Self::new(b'u', uris)),
            (true, false) => Some(Self::new(b'd', hosts)),
            // As it is encoded: as text, the parts of two subjects could be the same.
            (true, true) if subject.iter().next().is_some() => Some(Self::new(b's', vec![subject.as_raw().to_vec()])),
            (true, true) => None,
        }
    }

    /// The name of a certificate with this URI, or this DNS name, and no other one.
    pub fn of_alternative_name(name: &str) -> Self {
        Self::new(if name.contains(':') { b'u' } else { b'd' }, vec![name.as_bytes().to_vec()])
    }

    // See docs/decisions/0017-name-every-caller.md.
    fn new(kind: u8, mut names: Vec<Vec<u8>>) -> Self {
        names.sort();
        names.dedup();
        let name = |name: Vec<u8>| [&(name.len() as u64).to_be_bytes(), &*name].concat();
        Self([kind].into_iter().chain(names.into_iter().flat_map(name)).collect())
    }

    /// The bytes for the scope's hash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    /// The name of a certificate with this common name and these alternative names.
    fn name(common: &[&str], names: &[SanType]) -> Option<CertificateName> {
        let mut params = CertificateParams::default();
        params.distinguished_name = Default::default();
        for name in common {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.subject_alt_names = names.to_vec();
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        CertificateName::read(certificate.der())
    }

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().unwrap())
    }

    fn dns(text: &str) -> SanType {
        SanType::DnsName(text.try_into().unwrap())
    }

    #[test]
    fn a_certificate_is_named_by_its_uris_else_its_hosts_else_its_subject() {
        let address = SanType::IpAddress([127, 0, 0, 1].into());
        for (one, other) in [
            (name(&["x"], &[uri("spiffe://a"), dns("a")]), name(&["y"], &[dns("b"), uri("spiffe://a")])),
            (name(&["x"], &[dns("A.example")]), name(&[], &[dns("a.example"), address.clone()])),
            (name(&["x"], &[]), name(&["x"], std::slice::from_ref(&address))),
            (name(&[], &[uri("u:1"), uri("u:2")]), name(&[], &[uri("u:2"), uri("u:1"), uri("u:2")])),
        ] {
            assert!(one.is_some() && one == other, "{one:?} {other:?}");
        }
        assert_eq!((name(&[], &[]), name(&[], &[address]), CertificateName::read(b"x")), (None, None, None));
    }

    #[test]
    fn certificates_with_other_names_are_other_callers() {
        let all = [
            name(&["a"], &[]),
            name(&["b"], &[]),
            name(&[], &[dns("a")]),
            name(&[], &[uri("a")]),
            name(&[], &[uri("A")]),
            name(&[], &[uri("a"), uri("b")]),
            name(&[], &[uri("ab")]),
            name(&[], &[dns("a"), dns("b")]),
            name(&[], &[dns("a,b")]),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(one.is_some() && !all[..index].contains(one), "{index}");
        }
    }
}
