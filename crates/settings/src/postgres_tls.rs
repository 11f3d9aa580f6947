//! TLS towards PostgreSQL: the TLS parameters of its URL, with libpq's meaning and stricter defaults.
//!
//! The driver knows three of the modes and none of the files.

use std::path::{Path, PathBuf};

use super::{Word, one_of};
use crate::words;

words! {
    /// The verification of the server, before anything else is sent to it.
    pub enum SslMode {
        /// Cleartext.
        Disable = "disable",
        /// TLS without verification, or cleartext where the server has no TLS.
        Prefer = "prefer",
        /// TLS without verification.
        Require = "require",
        /// A certificate by one of the authorities, for any name.
        VerifyCa = "verify-ca",
        /// A certificate by one of the authorities, for the host's name as the URL has it.
        VerifyFull = "verify-full",
    }
}

/// The authorities that the server is verified with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// The authorities in this PEM file.
    File(PathBuf),
    /// The system's.
    System,
}

/// The certificate that is presented to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A PEM file: the certificate and its chain.
    pub certificate: PathBuf,
    /// A PEM file: its key.
    pub key: PathBuf,
}

/// TLS towards the servers of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresTls {
    /// The effective mode, by the defaults and `sslrootcert`.
    pub mode: SslMode,
    /// Whether the URL has an `sslmode` itself.
    pub is_written: bool,
    /// The authorities, for the modes that verify.
    pub roots: Roots,
    /// A client's certificate, where there is one.
    pub identity: Option<Identity>,
}

/// The TLS parameters of a URL as they are written.
#[derive(Default)]
pub(super) struct TlsParameters {
    pub mode: Option<String>,
    pub roots: Option<String>,
    pub certificate: Option<String>,
    pub key: Option<String>,
}

impl PostgresTls {
    /// Places the files in this folder, those with whole paths excepted.
    pub(super) fn place_files(&mut self, folder: &Path) {
        let place = |file: &mut PathBuf| *file = folder.join(&file);
        if let Roots::File(file) = &mut self.roots {
            place(file);
        }
        if let Some(Identity { certificate, key }) = &mut self.identity {
            place(certificate);
            place(key);
        }
    }

    /// The settings by a URL's parameters.
    ///
    /// Without an `sslmode`, a server on this machine (loopback or a socket) has `prefer`, and any other `verify-full`.
    /// A problem never has a value, which may be a piece of a password.
    // libpq's `prefer` for a remote server would fall back to cleartext. See
    // docs/decisions/0030-choose-dependencies.md.
    pub(super) fn from_parameters(
        parameters: TlsParameters,
        is_on_this_machine: bool,
        is_socket: bool,
    ) -> Result<Self, String> {
        let TlsParameters { mode, roots, certificate, key } = parameters;
        let identity = match (certificate, key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(Identity { certificate: certificate.into(), key: key.into() }),
            (None, Some(_)) => return Err("has an `sslkey` without an `sslcert`".into()),
            (Some(_), None) => return Err("has an `sslcert` without an `sslkey`".into()),
        };
        let roots = roots.map(|roots| if roots == "system" { Roots::System } else { Roots::File(roots.into()) });
        let is_written = mode.is_some();
        let mode = mode.map(|word| parse_mode(&word)).transpose()?;
        let mode = match effective_mode(mode, roots.as_ref(), is_on_this_machine)? {
            // As in libpq: nobody can be in between.
            _ if is_socket => SslMode::Disable,
            mode => mode,
        };
        Ok(Self { mode, is_written, roots: roots.unwrap_or(Roots::System), identity })
    }

    /// The files that a connection needs.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let identity = self.identity.iter().flat_map(|identity| [&*identity.certificate, &*identity.key]);
        identity.chain(self.authorities()).filter(|_| self.mode != SslMode::Disable)
    }

    /// The file of the authorities, where the server is verified with one.
    pub fn authorities(&self) -> Option<&Path> {
        match (&self.roots, self.mode) {
            (Roots::File(path), SslMode::VerifyCa | SslMode::VerifyFull) => Some(path),
            _ => None,
        }
    }

    /// Whether the server is verified with the system's authorities.
    pub fn needs_system_authorities(&self) -> bool {
        self.mode == SslMode::VerifyFull && self.roots == Roots::System
    }
}

fn parse_mode(word: &str) -> Result<SslMode, String> {
    match word {
        "no-verify" => Err("has `sslmode=no-verify`, a value of node-postgres: write `sslmode=require`".into()),
        _ => SslMode::parse(word).ok_or_else(|| format!("has an unknown `sslmode`: write {}", one_of(SslMode::WORDS))),
    }
}

fn effective_mode(mode: Option<SslMode>, roots: Option<&Roots>, on_this_machine: bool) -> Result<SslMode, String> {
    match (mode, roots) {
        (None, None) if on_this_machine => Ok(SslMode::Prefer),
        // A URL that names authorities wants the server verified.
        (None, _) => Ok(SslMode::VerifyFull),
        (Some(SslMode::Prefer), _) if !on_this_machine => {
            Err("has `sslmode=prefer` for a host that is not this machine, where anybody in between could switch TLS \
                 off: write `sslmode=verify-full`, or `sslmode=disable` if you trust the network"
                .into())
        }
        // As in libpq: anybody can get a certificate from one of the public authorities.
        (Some(SslMode::Require | SslMode::VerifyCa), Some(Roots::System)) => {
            Err("has `sslrootcert=system` with an `sslmode` that does not verify names: write `sslmode=verify-full`"
                .into())
        }
        (Some(SslMode::VerifyCa), None) => {
            Err("has `sslmode=verify-ca` without an `sslrootcert`: write one, or `sslmode=verify-full`".into())
        }
        // As in libpq.
        (Some(SslMode::Require), Some(Roots::File(_))) => Ok(SslMode::VerifyCa),
        (Some(mode), _) => Ok(mode),
    }
}
