//! Reads and checks `[admin]`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::environment::Environment;
use super::oidc::{self, OidcOptions};
use super::options::options;
use super::reader::Section;
use super::value_parsers::socket_address;
use oncegate_domain::execution_risk::FourEyesAction;
use oncegate_settings::{AdminConfig, AdminListenerConfig, AdminToken, OidcConfig, StoreLocation};

options! {
    struct AdminOptions {
        /// address and port for operators and probes
        listen: Text = "127.0.0.1:8081" => SocketAddr, parsed(socket_address);
        /// the token that operators present; needed unless the listener is loopback
        token: Concealed = "" => Option<AdminToken>, optional(AdminToken::parse);
        /// a token that may look and not change
        read_token: Concealed = "" => Option<AdminToken>, optional(AdminToken::parse);
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

/// Reads the whole table, and finds the token's file, where a place for it is known. `store` is where the store is, if
/// that is known.
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
    (listener, AdminConfig { token, read_token, service_tokens: Vec::new(), oidc, four_eyes })
}

fn parse_four_eyes(text: &str) -> Result<FourEyesAction, String> {
    FourEyesAction::parse(text).ok_or_else(|| "is not known: write `purge` or `release`".into())
}

/// The token that a client of the instance sends: the configured one, else that of the file, if there is one.
pub(super) fn read_client_token(section: &Section<'_>, store: Option<&StoreLocation>) -> Option<AdminToken> {
    let token = section.optional("token", AdminToken::parse);
    let file = section.optional("token_file", |path| Ok(section.locate("token_file", path)));
    let (file, open) = (find_file(file, store, section), section.boolean("open"));
    let from_file = || AdminToken::parse(section.reader().environment().read(file.as_deref()?).ok()?.trim_end()).ok();
    token.or_else(|| if open { None } else { from_file() })
}

/// The file of the token that the first start draws: the written one, or the default.
fn find_file(written: Option<PathBuf>, store: Option<&StoreLocation>, section: &Section<'_>) -> Option<PathBuf> {
    written.or_else(|| default_file(store?, section.reader().environment()))
}

/// The default place of the token's file: beside the SQLite file, else in the service's state directory (systemd sets
/// `STATE_DIRECTORY`), else in the user's (XDG Base Directory Specification). `None` without any of them.
fn default_file(store: &StoreLocation, environment: &dyn Environment) -> Option<PathBuf> {
    if let StoreLocation::Sqlite(path) = store {
        let mut name = path.file_name()?.to_owned();
        name.push(".admin-token");
        return Some(path.with_file_name(name));
    }
    let folder = |name: &str| environment.variable(name).filter(|folder| Path::new(folder).is_absolute());
    // systemd separates several directories by colons.
    let state = folder("STATE_DIRECTORY").and_then(|list| list.split(':').next().map(PathBuf::from));
    let user = || folder("XDG_STATE_HOME").map(PathBuf::from);
    let home = || folder("HOME").map(|home| Path::new(&home).join(".local/state"));
    state
        .or_else(|| user().or_else(home).map(|folder| folder.join("oncegate")))
        .map(|folder| folder.join("admin-token"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::FakeEnvironment;

    #[test]
    fn the_file_is_beside_the_store_or_in_a_state_directory() {
        let file = |store: &str, variables: &[(&str, &str)]| {
            let environment = variables
                .iter()
                .fold(FakeEnvironment::default(), |environment, (name, value)| environment.with_variable(name, value));
            default_file(&StoreLocation::parse(store).unwrap(), &environment).map(|path| path.display().to_string())
        };
        let (state, xdg, home) =
            (("STATE_DIRECTORY", "/var/lib/a:/var/lib/b"), ("XDG_STATE_HOME", "/s"), ("HOME", "/home/u"));
        for (store, variables, expected) in [
            ("sqlite:/data/oncegate.db", &[state][..], Some("/data/oncegate.db.admin-token")),
            ("sqlite:oncegate.db", &[], Some("oncegate.db.admin-token")),
            ("memory:", &[state, xdg, home], Some("/var/lib/a/admin-token")),
            ("memory:", &[xdg, home], Some("/s/oncegate/admin-token")),
            ("memory:", &[home], Some("/home/u/.local/state/oncegate/admin-token")),
            ("memory:", &[("HOME", "relative")], None),
            ("memory:", &[], None),
        ] {
            assert_eq!(file(store, variables).as_deref(), expected, "{store} {variables:?}");
        }
    }
}
