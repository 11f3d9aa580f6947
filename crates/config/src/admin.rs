//! Reads and checks `[admin]`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::oidc::{OidcConfig, OidcOptions};
use super::options::options;
use super::reader::Section;
use super::value_parsers::socket_address;
use super::{AdminListenerConfig, AdminToken, StoreLocation, admin_token, oidc};
use oncegate_domain::execution_risk::FourEyesAction;

options! {
    /// The options of `[admin]`: the operators' listener.
    pub(super) struct AdminOptions {
        /// address and port for operators and probes
        listen: Text = "127.0.0.1:8081" => SocketAddr, parsed(socket_address);
        /// the token that operators present; needed unless the listener is loopback
        token: Text = "" => Option<AdminToken>, optional_concealed(AdminToken::parse);
        /// a token that may look and not change
        read_token: Text = "" => Option<AdminToken>, optional_concealed(AdminToken::parse);
        /// the file for a token that the first start draws, if there is no `token`
        token_file: Text = "" => Option<PathBuf>, optional(|path| Ok(path.into()));
        /// ask for no token: everybody on this machine is an operator
        open: Boolean = false => bool, boolean();
        /// the issuer with which people sign in to the page, beside the token
        oidc: Table(OidcOptions::KEYS) = {} => Option<Arc<OidcConfig>>, inner(oidc::read);
        /// the actions that one person proposes and another one confirms, of `purge` and `release`; needs `oidc`
        four_eyes: Texts = [] => Vec<FourEyesAction>, values(parse_four_eyes);
    }
}

/// The settings of the operators' listener that a reload replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// The token of operators.
    pub token: Option<AdminToken>,
    /// The token that may look and not change.
    pub read_token: Option<AdminToken>,
    /// The issuer with which people sign in to the page.
    pub oidc: Option<Arc<OidcConfig>>,
    /// The actions that one person proposes and another one confirms.
    pub four_eyes: Vec<FourEyesAction>,
}

/// Reads the whole table, and finds the token's file, where a place for it is known. `store` is where the store is, if that is
/// known.
pub(super) fn read(
    section: &Section<'_>,
    top: &Section<'_>,
    store: Option<&StoreLocation>,
) -> (AdminListenerConfig, AdminConfig) {
    let admin = AdminOptions::read(section);
    let same = |listen: SocketAddr| listen == admin.listen && listen.port() != 0;
    if same(top.parsed("listen", socket_address)) && top.is_right(&["listen"]) && section.is_right(&["listen"]) {
        let position = top.position("listen").max(section.position("listen"));
        section.reader().problem(&position, "`listen` and `admin.listen` are the same address");
    }
    if admin.token.is_none() && section.is_right(&["token", "listen"]) && !admin.listen.ip().is_loopback() {
        let message = format!(
            "`{}` is no loopback address, and there is no `admin.token`: anybody who reaches this listener could do \
             everything; set ONCEGATE_ADMIN_TOKEN or `admin.token` to what `openssl rand -base64 32` prints, or write \
             `127.0.0.1:8081`",
            admin.listen
        );
        section.problem("listen", message);
    }
    if admin.token.is_some() && admin.token == admin.read_token {
        section.problem("listen", "`token` and `read_token` are the same: a reader could change everything");
    } else if admin.open && admin.token.is_some() {
        section.problem("open", "contradicts `token`: an open listener asks for none");
    } else if admin.open && admin.oidc.is_some() {
        section.problem("open", "contradicts `oidc`: an open listener asks nobody to sign in");
    }
    if !admin.four_eyes.is_empty() && admin.oidc.is_none() && section.is_right(&["oidc", "four_eyes"]) {
        let why = "needs `[admin.oidc]` beside it: with one token for all, nobody can tell two persons apart";
        section.problem("four_eyes", why);
    }
    let AdminOptions { listen, token, read_token, token_file, open, oidc, four_eyes } = admin;
    let token_file = token_file.map(|file| section.locate("token_file", file));
    let token_file = find_file(token_file, store, section);
    let listener = AdminListenerConfig { listen, token_file, open, has_token: token.is_some() };
    (listener, AdminConfig { token, read_token, oidc, four_eyes })
}

fn parse_four_eyes(text: &str) -> Result<FourEyesAction, String> {
    FourEyesAction::parse(text).ok_or_else(|| "is not known: write `purge` or `release`".into())
}

/// The token that a client of the instance sends: the configured one, else that of the file, if there is one.
pub(super) fn read_client_token(section: &Section<'_>, store: Option<&StoreLocation>) -> Option<AdminToken> {
    let token = section.optional_concealed("token", AdminToken::parse);
    let file = section.optional("token_file", |path| Ok(section.locate("token_file", path)));
    let (file, open) = (find_file(file, store, section), section.boolean("open"));
    let from_file = || AdminToken::parse(section.reader().environment().read(file.as_deref()?).ok()?.trim_end()).ok();
    token.or_else(|| if open { None } else { from_file() })
}

/// The file of the token that the first start draws: the written one, or the default.
fn find_file(written: Option<PathBuf>, store: Option<&StoreLocation>, section: &Section<'_>) -> Option<PathBuf> {
    written.or_else(|| admin_token::default_file(store?, section.reader().environment()))
}
