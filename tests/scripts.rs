//! Runs the scripts of the supply chain and of releases: what they could not check, they say.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use store_contract::programs::{find_program, skip};

/// Runs a script without network, without the programs that `cargo install` has put anywhere, and without a place for
/// new ones.
fn run_alone(script: &str, variables: &[(&str, &str)]) -> Output {
    let home = tempfile::tempdir().unwrap();
    let toolchain = Path::new(env!("CARGO")).parent().unwrap();
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script));
    command.env("PATH", format!("{}:/usr/bin:/bin", toolchain.display()));
    command.env("CARGO_HOME", home.path()).env("CARGO_NET_OFFLINE", "true").envs(variables.iter().copied());
    command.output().unwrap()
}

#[test]
fn a_check_of_dependencies_that_cannot_run_says_so_and_fails_a_release() {
    for (variables, code) in [(&[][..], 0), (&[("DEPENDENCIES", "all")][..], 69)] {
        let ended = run_alone("dependencies", variables);
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.contains("NOT checked: bans licenses sources advisories"), "{said}");
        assert_eq!(ended.status.code(), Some(code), "{said}");
    }
}

#[test]
fn fuzzing_without_its_tools_names_them() {
    let ended = run_alone("fuzz", &[]);
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(69), "{said}");
    assert!(said.contains("cargo install --locked cargo-fuzz"), "{said}");
}

/// The date of today, by the clock that the script reads.
fn today() -> String {
    let output = Command::new("date").arg("+%F").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let author = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
    let output = Command::new("git").args(author).args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The tree in a repository of its own, with what only the day of a release brings.
struct ReleaseTree(tempfile::TempDir);

impl ReleaseTree {
    fn new() -> Self {
        let (root, tree) = (Path::new(env!("CARGO_MANIFEST_DIR")), Self(tempfile::tempdir().unwrap()));
        let listed = git(root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        for file in listed.split('\0').filter(|file| root.join(file).is_file()) {
            let place = tree.0.path().join(file);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::copy(root.join(file), place).unwrap();
        }
        let version = env!("CARGO_PKG_VERSION");
        tree.write("CHANGELOG.md", &format!("# Changelog\n\n## {version} - {}\n\n- All.\n", today()));
        let said = tree.read("README.md");
        let said: String = said.split_inclusive('\n').filter(|line| !line.contains("released yet")).collect();
        tree.write("README.md", &said);
        for (service, store) in
            [("plain", "postgres"), ("plain", "sqlite"), ("sealed", "postgres"), ("sealed", "sqlite")]
        {
            let steps = fs::read_dir(root.join("migrations").join(store)).unwrap().map(|entry| entry.unwrap().path());
            let steps: String = steps.map(|step| format!("-- '{}'\n", step.file_stem().unwrap().display())).collect();
            tree.write(&format!("tests/fixtures/{version}/{service}/{store}.sql"), &steps);
        }
        git(tree.0.path(), &["init", "--quiet"]);
        tree.commit();
        tree
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.path().join(file)).unwrap()
    }

    fn write(&self, file: &str, text: &str) {
        let place = self.0.path().join(file);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, text).unwrap();
    }

    fn replace(&self, file: &str, from: &str, to: &str) {
        let text = self.read(file);
        assert!(text.contains(from), "{file} has no {from}");
        self.write(file, &text.replacen(from, to, 1));
    }

    fn commit(&self) {
        git(self.0.path(), &["add", "--all"]);
        git(self.0.path(), &["commit", "--quiet", "--message", "A change"]);
    }

    /// Runs the static checks. Returns the exit code and all that they say.
    fn check(&self) -> (Option<i32>, String) {
        self.check_with("older")
    }

    fn check_with(&self, runs: &str) -> (Option<i32>, String) {
        let mut script = Command::new(self.0.path().join("scripts/release"));
        // The commits of long runs are not in this repository.
        let output = script.env("RELEASE_QUICK", "1").env("RUNS", runs).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    }
}

#[test]
fn a_release_names_what_is_missing_and_changes_nothing() {
    let version = env!("CARGO_PKG_VERSION");
    let tree = ReleaseTree::new();
    let (code, said) = tree.check();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.ends_with(&format!("git tag -a v{version} -m 'Oncegate {version}'\n")), "{said}");
    assert_eq!(git(tree.0.path(), &["status", "--porcelain"]), "");
    for (file, from, to, complaint) in [
        ("CHANGELOG.md", "## ", "## Unreleased\n\n- More.\n\n## ", "CHANGELOG.md: 1 lines are under Unreleased"),
        ("CHANGELOG.md", "## ", "## [Unreleased]\n\nMore.\n\n## ", "CHANGELOG.md: 1 lines are under Unreleased"),
        ("CHANGELOG.md", &today(), "2026-99-99", "is '2026-99-99', and not one of the last two weeks"),
        ("CHANGELOG.md", &today(), "2025-01-01", "is '2025-01-01', and not one of the last two weeks"),
        ("CHANGELOG.md", "- All.", "- All.\n\n## 0.0.1 - 2026-01-01", "the tag v0.0.1 is not here"),
        ("CHANGELOG.md", "- All.", "- All.\n\n## 0.0.1 - 2026-01-01", "tests/fixtures/0.0.1 is missing"),
        ("CHANGELOG.md", version, "0.0.1", "CHANGELOG.md: the newest section is '0.0.1'"),
        ("deploy/compose/compose.yaml", version, "0.0.1", "deploy/compose/compose.yaml names '0.0.1'"),
        ("deploy/helm/oncegate/Chart.yaml", version, "0.0.1", "deploy/helm/oncegate/Chart.yaml names '0.0.1'"),
        ("Dockerfile", version, "0.0.1", "Dockerfile names '0.0.1'"),
        ("README.md", version, "0.0.1", "README.md names '0.0.1'"),
        ("SECURITY.md", "\n", "\nThis is unreleased.\n", "it says that there is no release: SECURITY.md:2"),
        ("README.md", "\n", "\nNone has been published yet.\n", "it says that there is no release: README.md:2"),
    ] {
        let before = tree.read(file);
        tree.replace(file, from, to);
        tree.commit();
        let (code, said) = tree.check();
        assert!(code == Some(65) && said.contains(complaint), "{complaint}: {said}");
        tree.write(file, &before);
        tree.commit();
    }
    let (code, said) = tree.check_with("all");
    assert!(code == Some(65) && said.contains("these did not run this program: attacks bench"), "{said}");
    let commit = git(tree.0.path(), &["rev-parse", "HEAD"]);
    tree.write("tests/long-runs/commits", &format!("attacks 2026-01-01 {commit}"));
    tree.commit();
    assert!(tree.check_with("all").1.contains("these did not run this program: bench"));
    tree.write(&format!("tests/fixtures/{version}/sealed/postgres.sql"), "");
    let said = tree.check().1;
    for complaint in ["has not the migration", "the tree has changes that are not committed"] {
        assert!(said.contains(complaint), "{said}");
    }
}

#[test]
fn after_a_tag_lines_of_golden_files_are_only_added() {
    let tree = ReleaseTree::new();
    git(tree.0.path(), &["tag", "--annotate", "v0.0.1", "--message", "An earlier release"]);
    tree.replace("tests/identity.rs", "#[test]\n", "// One more line.\n#[test]\n");
    tree.write("migrations/sqlite/more.txt", "One more file.\n");
    tree.commit();
    // A forge checks the tag that it builds.
    let tag = concat!("v", env!("CARGO_PKG_VERSION"));
    git(tree.0.path(), &["tag", "--annotate", tag, "--message", "This release"]);
    let (code, said) = tree.check();
    assert!(code == Some(0) && said.contains("last tag v0.0.1"), "{said}");
    tree.replace("tests/identity.rs", "order-42", "order-43");
    fs::remove_file(tree.0.path().join("migrations/postgres/0001_init.sql")).unwrap();
    tree.commit();
    let (code, said) = tree.check();
    assert!(code == Some(65) && said.contains(&format!("the tag {tag} exists")), "{said}");
    for complaint in [
        "tests/identity.rs has lines that changed since v0.0.1",
        "migrations/postgres/0001_init.sql has changed since v0.0.1",
    ] {
        assert!(said.contains(&format!("golden file {complaint}")), "{said}");
    }
}

#[test]
fn after_a_tag_no_golden_file_can_be_renamed_left_out_or_forgotten() {
    let tree = ReleaseTree::new();
    git(tree.0.path(), &["tag", "--annotate", "v0.0.1", "--message", "An earlier release"]);
    let path = |name: &str| tree.0.path().join(name);
    let version = env!("CARGO_PKG_VERSION");
    let store = format!("tests/fixtures/{version}/plain/sqlite.sql");
    let changes: [(&dyn Fn(), String); 6] = [
        (
            &|| fs::rename(path("migrations/sqlite/0001_init.sql"), path("migrations/sqlite/0001_names.sql")).unwrap(),
            "golden file migrations/sqlite/0001_init.sql has changed".to_owned(),
        ),
        (
            &|| fs::rename(path(&store), path("tests/fixtures/moved.sql")).unwrap(),
            format!("golden file {store} has changed"),
        ),
        (
            &|| tree.replace("migrations/sqlite/0001_init.sql", "\n", "\n-- One more line.\n"),
            "golden file migrations/sqlite/0001_init.sql has changed".to_owned(),
        ),
        (
            &|| tree.replace("tests/identity.rs", "#[test]\n", "#[test]\n#[ignore]\n"),
            "golden file tests/identity.rs leaves tests out: #[ignore]".to_owned(),
        ),
        (
            &|| tree.write("tests/identity.rs", &format!("#![cfg(any())]\n{}", tree.read("tests/identity.rs"))),
            "golden file tests/identity.rs leaves tests out: #![cfg(any())]".to_owned(),
        ),
        (
            &|| {
                tree.write("tests/golden-files", "# None.\n");
                fs::rename(path("tests/identity.rs"), path("tests/identities.rs")).unwrap();
            },
            "golden file tests/identity.rs is missing".to_owned(),
        ),
    ];
    for (change, complaint) in changes {
        change();
        tree.commit();
        let (code, said) = tree.check();
        assert!(code == Some(65) && said.contains(&complaint), "{complaint}: {said}");
        git(tree.0.path(), &["revert", "--no-edit", "HEAD"]);
    }
    assert_eq!(tree.check().0, Some(0));
}

/// A folder of a release whose program only tells its version: an archive and a Debian package.
struct Dist(tempfile::TempDir);

impl Dist {
    fn new() -> Self {
        let dist = Self(tempfile::tempdir().unwrap());
        dist.shell(
            "mkdir -p dist root tree/DEBIAN tree/usr/bin oncegate-9.9.9-x86_64-linux-musl oncegate-9.9.9-aarch64-linux-musl
             printf '#!/bin/sh\necho oncegate 9.9.9\n' >tree/usr/bin/oncegate && chmod +x tree/usr/bin/oncegate
             printf 'Package: oncegate\nVersion: 9.9.9\nArchitecture: amd64\nMaintainer: a <a@b.example>\nDescription: a test\n' >tree/DEBIAN/control
             dpkg-deb --root-owner-group --build tree dist/oncegate_9.9.9_amd64.deb
             for name in oncegate-*; do cp tree/usr/bin/oncegate $name && tar -czf dist/$name.tar.gz $name; done",
        )
        .unwrap();
        dist
    }

    /// Runs a script in the folder, where `scripts` is the project's; an error is what it says.
    fn shell(&self, script: &str) -> Result<String, String> {
        let mut command = Command::new("sh");
        command.args(["-euc", script]).current_dir(self.0.path());
        command
            .env("scripts", Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts"))
            .env("SOURCE_DATE_EPOCH", "1700000000");
        for name in ["ONCEGATE_GPG_KEY", "ONCEGATE_MINISIGN_KEY", "ONCEGATE_PUBLIC_KEY"] {
            command.env_remove(name);
        }
        let output = command
            .env("GNUPGHOME", self.0.path().join("gpg"))
            .env("PREFIX", self.0.path().join("prefix"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if output.status.success() { Ok(said) } else { Err(said) }
    }

    /// Has apt read the repository and download the package, with a configuration, state and cache of its own.
    fn apt(&self, option: &str) -> Result<String, String> {
        self.shell(&format!(
            "cd root && rm -rf etc var oncegate_* && mkdir -p etc/apt/apt.conf.d etc/apt/preferences.d etc/apt/trusted.gpg.d var/lib/dpkg \
                 var/lib/apt/lists/partial var/cache/apt/archives/partial
             touch etc/apt/apt.conf var/lib/dpkg/status
             echo \"deb [{option}] file://$PWD/../dist/apt stable main\" >etc/apt/sources.list
             export APT_CONFIG=$PWD/etc/apt/apt.conf
             apt() {{ apt-get -q -o Dir=$PWD -o Dir::State::status=$PWD/var/lib/dpkg/status -o APT::Sandbox::User= \
                 -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Update::Error-Mode=any -o Acquire::Check-Date=true -o Acquire::Check-Valid-Until=true \"$@\"; }}
             apt update && apt download oncegate && cmp oncegate_*.deb ../dist/oncegate_9.9.9_amd64.deb"
        ))
    }
}

#[test]
fn apt_takes_the_packages_of_the_repository_and_refuses_changed_ones() {
    for tool in ["apt-get", "dpkg-scanpackages", "gpg", "gpgv"] {
        if find_program(&[tool]).is_none() {
            return skip(format!("{tool} is not installed"));
        }
    }
    let dist = Dist::new();
    let said = dist.shell("\"$scripts/repository\" dist").unwrap();
    assert!(said.contains("NOT signed"), "{said}");
    dist.apt("trusted=yes").unwrap();
    dist.apt("trusted=no").expect_err("nobody has signed it");
    // By a key of the owner's.
    let key =
        "mkdir -m 700 gpg && gpg --batch --quiet --passphrase '' --quick-gen-key owner@example.com ed25519 sign never";
    dist.shell(key).unwrap();
    let signed =
        dist.shell("ONCEGATE_GPG_KEY=owner@example.com \"$scripts/repository\" dist; gpgconf --kill gpg-agent");
    assert!(signed.as_ref().unwrap().contains("signed; its public key"), "{signed:?}");
    let keyring = format!("signed-by={}", dist.0.path().join("dist/apt/oncegate.gpg").display());
    dist.apt(&keyring).unwrap();
    let kept = "rm -rf kept && cp -r dist/apt kept";
    let expired = "ONCEGATE_APT_VALID_DAYS=-1 ONCEGATE_GPG_KEY=owner@example.com \"$scripts/repository\" dist; gpgconf --kill gpg-agent";
    dist.shell(&format!("{kept} && {expired}")).unwrap();
    let refused = dist.apt(&keyring).expect_err("the repository is one of the day before yesterday");
    assert!(refused.contains("expired"), "{refused}");
    dist.shell("rm -rf dist/apt && mv kept dist/apt").unwrap();
    dist.shell("cd dist/apt/pool/main/o/oncegate && echo >>oncegate_9.9.9_amd64.deb").unwrap();
    dist.apt(&keyring).expect_err("the package has another hash than the index");
    dist.shell("cd dist/apt/dists/stable/main/binary-amd64 && rm Packages.gz && sed -i s/9.9.9/9.9.8/ Packages")
        .unwrap();
    dist.apt(&keyring).expect_err("the index has another hash than the release");
    dist.shell("cd dist/apt/dists/stable && sed -i s/Oncegate/Otherwise/ InRelease && rm Release.gpg Release").unwrap();
    dist.apt(&keyring).expect_err("the signature is of another release");
}

#[test]
fn the_installer_takes_released_archives_alone() {
    let dist = Dist::new();
    let install =
        |variables: &str| dist.shell(&format!("rm -rf prefix; {variables} sh dist/install.sh file://$PWD/dist"));
    let is_installed = || dist.0.path().join("prefix/bin/oncegate").exists();
    let (has_minisign, sign) = (find_program(&["minisign"]).is_some(), "\"$scripts/sign\" dist");
    assert!(dist.shell(sign).unwrap().contains("NOT signed"));
    let said = install("").unwrap();
    assert!(said.contains("NOT checked: no public key") && said.contains("oncegate 9.9.9") && is_installed(), "{said}");
    assert!(dist.shell("sh dist/install.sh http://127.0.0.1/x").unwrap_err().contains("only https://"));
    if has_minisign {
        dist.shell("minisign -GWf -p public -s secret && minisign -GWf -p other -s other-secret").unwrap();
        dist.shell(&format!("ONCEGATE_MINISIGN_KEY=$PWD/secret {sign}")).unwrap();
        for key in ["", "ONCEGATE_PUBLIC_KEY=$(tail -n 1 public)"] {
            let said = install(key).unwrap();
            assert!(!said.contains("NOT checked") && is_installed(), "{said}");
        }
        let refused = install("ONCEGATE_PUBLIC_KEY=$(tail -n 1 other)").unwrap_err();
        assert!(refused.contains("the signature of SHA256SUMS is wrong") && !is_installed(), "{refused}");
        dist.shell("cp dist/SHA256SUMS kept && sed -i 's/^./0/' dist/SHA256SUMS").unwrap();
        assert!(install("").unwrap_err().contains("the signature of SHA256SUMS is wrong") && !is_installed());
        dist.shell("cp kept dist/SHA256SUMS").unwrap();
        // The whole release before, with its own signature, in the place of this one.
        let older = "cp -r dist older && cd older && rm SHA256SUMS.minisig && for name in *9.9.9*; do mv $name $(echo $name | sed s/9.9.9/9.9.8/); done
                     cd .. && ONCEGATE_MINISIGN_KEY=$PWD/secret \"$scripts/sign\" older && cp dist/install.sh older";
        dist.shell(older).unwrap();
        for variables in ["", "ONCEGATE_VERSION=9.9.9"] {
            let refused =
                dist.shell(&format!("rm -rf prefix; {variables} sh older/install.sh file://$PWD/older")).unwrap_err();
            assert!(refused.contains("the signature is not of oncegate 9.9.9, but says 'oncegate 9.9.8'"), "{refused}");
            assert!(!is_installed());
        }
        // Another release's archive under a signature of this one.
        let mixed = "cd older && minisign -Sm SHA256SUMS -s ../secret -t 'oncegate 9.9.9' >/dev/null";
        dist.shell(mixed).unwrap();
        let refused = dist.shell("sh older/install.sh file://$PWD/older").unwrap_err();
        assert!(refused.contains("is not of version 9.9.9") && !is_installed(), "{refused}");
    } else {
        skip("minisign is not installed");
    }
    // Without minisign, or a key, the archive's name tells the version.
    assert!(install("ONCEGATE_VERSION=9.9.8").unwrap_err().contains("9.9.8") && !is_installed());
    dist.shell("for archive in dist/*.tar.gz; do echo >>$archive; done").unwrap();
    let refused = install("").unwrap_err();
    assert!(refused.contains("is not the released one") && !is_installed(), "{refused}");
}

/// A server of HTTPS for `dist`, whose paths below `/https/` lead to it again, and those below `/http/` to a server
/// without TLS.
const REDIRECTS: &str = r#"
import http.server, ssl, sys, threading
class Files(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        for scheme, port in (("https", tls.server_port), ("http", plain.server_port)):
            if self.path.startswith(f"/{scheme}/"):
                self.send_response(302)
                self.send_header("Location", f"{scheme}://localhost:{port}/" + self.path.split("/", 2)[2])
                self.end_headers()
                return
        super().do_GET()
    def log_message(self, *_): pass
tls, plain = (http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) for _ in range(2))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("../cert.pem", "../key.pem")
tls.socket = context.wrap_socket(tls.socket, server_side=True)
threading.Thread(target=plain.serve_forever, daemon=True).start()
threading.Thread(target=tls.serve_forever, daemon=True).start()
print(tls.server_port, flush=True)
sys.stdin.read()
"#;

#[test]
fn the_installer_follows_a_redirect_to_https_and_none_to_http_with_each_of_its_tools() {
    for tool in ["curl", "wget", "openssl", "python3"] {
        if find_program(&[tool]).is_none() {
            return skip(format!("{tool} is not installed"));
        }
    }
    let dist = Dist::new();
    dist.shell(
        "\"$scripts/sign\" dist
         openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
             -keyout key.pem -out cert.pem 2>/dev/null
         echo \"ca_certificate = $PWD/cert.pem\" >wgetrc
         mkdir -p curl wget
         for tool in cat chmod echo grep head install mktemp rm sed sh sha256sum sort tar gzip tr uname wc; do
             ln -s \"$(command -v $tool)\" curl/$tool; ln -s \"$(command -v $tool)\" wget/$tool
         done
         ln -s \"$(command -v curl)\" curl/curl; ln -s \"$(command -v wget)\" wget/wget",
    )
    .unwrap();
    let mut server = Command::new("python3")
        .args(["-c", REDIRECTS])
        .current_dir(dist.0.path().join("dist"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let url = format!("https://localhost:{}", port.trim());
    for tool in ["curl", "wget"] {
        for (path, is_taken) in
            [("", true), ("/https", true), ("/https/https", true), ("/http", false), ("/https/http", false)]
        {
            let installed = dist.shell(&format!(
                "rm -rf prefix; export CURL_CA_BUNDLE=$PWD/cert.pem WGETRC=$PWD/wgetrc; PATH=$PWD/{tool} sh dist/install.sh {url}{path}"
            ));
            match installed {
                Ok(said) => assert!(is_taken && said.contains("oncegate 9.9.9"), "{tool} {path}: {said}"),
                Err(said) => assert!(!is_taken && said.contains("cannot be had"), "{tool} {path}: {said}"),
            }
        }
    }
    drop(server.stdin.take());
    server.wait().unwrap();
}
