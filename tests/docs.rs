//! Checks the documents: their configurations are valid, their commands are accepted, their links have a target, and
//! the tests that they name exist.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use oncegate_domain::auth_scheme::{BETRAYING_ENDS, BETRAYING_NAMES, CredentialLife, SCHEMES};
use regex::Regex;
use tempfile::TempDir;

/// A fenced block of a document.
struct Block {
    kind: String,
    text: String,
    place: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every document, by its path from the root.
fn documents() -> BTreeMap<PathBuf, String> {
    fn collect(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = folder.join(entry.unwrap().file_name());
            let is_ours = name.components().all(|part| !part.as_os_str().to_str().unwrap().starts_with('.'));
            let is_built = ["target", "node_modules"].iter().any(|built| name.ends_with(built));
            match root().join(&name).is_dir() {
                true if is_ours && !is_built => collect(&name, found),
                false if name.extension().is_some_and(|extension| extension == "md") => {
                    let text = fs::read_to_string(root().join(&name)).unwrap();
                    found.insert(name, text);
                }
                _ => {}
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(Path::new(""), &mut found);
    assert!(found.len() > 20, "the documents are not found");
    found
}

/// Splits a document into its code blocks and its prose. Blocks in lists lose their indentation.
fn split(name: &Path, text: &str) -> (Vec<Block>, String) {
    let (mut blocks, mut prose, mut open) = (Vec::new(), String::new(), None::<(usize, Block)>);
    for (number, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        let indentation = line.len() - line.trim_start().len();
        match (&mut open, fence) {
            (None, Some(kind)) => {
                let place = format!("{}:{}", name.display(), number + 1);
                open = Some((indentation, Block { kind: kind.trim().to_owned(), text: String::new(), place }));
            }
            (Some(_), Some("")) => blocks.extend(open.take().map(|(_, block)| block)),
            (Some((indentation, block)), _) => {
                block.text.push_str(line.get(*indentation..).unwrap_or(line.trim_start()));
                block.text.push('\n');
            }
            (None, None) => {
                prose.push_str(line);
                prose.push('\n');
            }
        }
    }
    assert!(open.is_none(), "{}: a block has no end", name.display());
    (blocks, prose)
}

fn blocks(kind: &str) -> Vec<Block> {
    let all = documents().into_iter().flat_map(|(name, text)| split(&name, &text).0);
    all.filter(|block| block.kind == kind).collect()
}

/// A folder with the files that configurations name: secrets, and a certificate with its key.
fn surroundings() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("secret", "bm90IGEgc2VjcmV0IGF0IGFsbA");
    let made = rcgen::generate_simple_self_signed(["payments.example".to_owned()]).unwrap();
    write("etc/tls.crt", &made.cert.pem());
    write("etc/db-ca.pem", &made.cert.pem());
    write("etc/tls.key", &made.signing_key.serialize_pem());
    write("etc/internal-ca.pem", &made.cert.pem());
    write("etc/client.crt", &made.cert.pem());
    write("etc/client.key", &made.signing_key.serialize_pem());
    write("receipt.json", "{}");
    write("first.json", "{}");
    write("second.json", "{}");
    write("api.yaml", "openapi: 3.1.0\npaths: {}\n");
    folder
}

/// A document's text with its secret files, its certificate and `/etc/oncegate` replaced by files in this folder.
fn here(text: &str, folder: &Path) -> String {
    let text = text.replace("${file:/run/secrets/oncegate/store-url}", "postgres://oncegate@127.0.0.1/oncegate");
    let secret = Regex::new(r"\$\{file:[^}]+\}").unwrap();
    let text = secret.replace_all(&text, regex::NoExpand("${file:secret}"));
    let etc = folder.join("etc").display().to_string();
    text.replace("/run/secrets/oncegate-tls", &etc).replace("/etc/oncegate", &etc)
}

fn oncegate(arguments: &[String], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    for name in ["LISTEN", "UPSTREAM", "STORE_URL", "ADMIN_LISTEN", "ADMIN_TOKEN", "LOG", "CONFIG"] {
        command.env_remove(format!("ONCEGATE_{name}"));
    }
    command.env("ONCEGATE_SECRET", "bm90IGEgc2VjcmV0IGF0IGFsbA");
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

/// Completes a fragment: a route's table gets its header, and missing required settings are added.
fn whole(snippet: &str) -> String {
    let is_whole = snippet.lines().any(|line| line.starts_with("upstream"));
    let has_tables = snippet.lines().any(|line| line.starts_with('['));
    match (is_whole, has_tables) {
        (true, _) => snippet.to_owned(),
        (false, true) => format!("upstream = \"http://127.0.0.1:3000\"\n{snippet}"),
        (false, false) => {
            format!("upstream = \"http://127.0.0.1:3000\"\n[[routes]]\nname = \"r\"\npath = \"/r\"\n{snippet}")
        }
    }
}

/// Checks a configuration in this folder: it is valid, and right, so that no warning needs to be read.
fn check_quiet(folder: &Path, place: &str, text: &str) {
    fs::write(folder.join("snippet.toml"), here(text, folder)).unwrap();
    check_file_quiet(folder, place, "snippet.toml", text);
}

fn check_file_quiet(folder: &Path, place: &str, name: &str, text: &str) {
    let checked = oncegate(&["check", "-c", name].map(str::to_owned), folder);
    let output = String::from_utf8(checked.stderr).unwrap();
    assert!(checked.status.success(), "{place}: {output}\n{text}");
    // Those about this machine say nothing about the text.
    let is_about_text = |line: &&str| !line.ends_with(" [readable-file]") && !line.ends_with(" [no-authorities]");
    assert_eq!(output.lines().filter(is_about_text).collect::<Vec<_>>(), [""; 0], "{place}: {text}");
}

#[test]
fn every_configuration_in_the_documents_is_valid_and_right() {
    let folder = surroundings();
    let snippets = blocks("toml");
    assert!(snippets.len() >= 8, "the configurations are not found");
    // Those whose first line names them are files beside each other.
    let (files, alone): (Vec<_>, Vec<_>) = snippets.into_iter().partition(|block| file_name(&block.text).is_some());
    for Block { text, place, .. } in alone {
        check_quiet(folder.path(), &place, &whole(&text));
    }
    for Block { text, .. } in &files {
        let path = folder.path().join(file_name(text).unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, here(text, folder.path())).unwrap();
    }
    for Block { text, place, .. } in files.iter().filter(|block| file_name(&block.text) == Some("oncegate.toml")) {
        check_file_quiet(folder.path(), place, "oncegate.toml", text);
    }
}

/// The name of the file that a snippet is, as its first line has it.
fn file_name(snippet: &str) -> Option<&str> {
    let name = snippet.lines().next()?.strip_prefix("# ")?.split(':').next()?;
    Some(name).filter(|name| name.ends_with(".toml"))
}

#[test]
fn every_configuration_beside_the_documents_is_valid_and_right() {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => collect(&path, found),
                false => found.extend(Some(path).filter(|path| path.extension().is_some_and(|kind| kind == "toml"))),
            }
        }
    }
    let (folder, mut files) = (surroundings(), Vec::new());
    ["config", "deploy", "examples"].iter().for_each(|name| collect(&root().join(name), &mut files));
    assert!(files.len() > 20, "{files:?}");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        // Some are the end of the file beside them, or a part of it that it includes.
        let before = match text.contains("upstream =") {
            true => String::new(),
            false => fs::read_to_string(file.with_file_name("oncegate.toml")).unwrap(),
        };
        if before.contains("\"routes.toml\"") {
            continue;
        }
        if text.contains("\"routes.toml\"") {
            fs::copy(file.with_file_name("routes.toml"), folder.path().join("routes.toml")).unwrap();
        }
        check_quiet(folder.path(), &file.display().to_string(), &format!("{before}{text}"));
    }
}

/// The commands in the documents, each with its position: without prompts, continuation lines joined, without comments
/// and other programs. Includes commands within a sentence, unless they are only a name.
fn commands() -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for block in blocks("sh").into_iter().chain(blocks("console")) {
        let lines = block.text.replace("\\\n", " ");
        let typed = lines.lines().map(|line| line.trim_start().trim_start_matches("$ "));
        let ours = typed.filter(|line| line.starts_with("oncegate "));
        found.extend(ours.map(|line| (block.place.clone(), words(line))));
    }
    let span = Regex::new("`(oncegate [a-z][^`…]*)`").unwrap();
    for (name, text) in documents() {
        let prose = split(&name, &text).1;
        let spans = span.captures_iter(&prose).map(|found| words(&found[1])).filter(|words| !is_a_name(words));
        found.extend(spans.map(|words| (name.display().to_string(), words)));
    }
    found
}

/// Whether a sentence only names a command or a flag and does not show its use.
fn is_a_name(words: &[String]) -> bool {
    words.len() == 1 || words.last().is_some_and(|word| word.starts_with("--"))
}

/// Splits a line into words as a shell does: quotes, redirections, comments.
fn words(line: &str) -> Vec<String> {
    let word = Regex::new(r#"'[^']*'|"[^"]*"|\S+"#).unwrap();
    let unquoted = |word: &str| word.trim_matches(['\'', '"']).to_owned();
    let all = word.find_iter(line).map(|found| found.as_str());
    all.take_while(|word| !["#", "&", ">", "|"].contains(word)).skip(1).map(unquoted).collect()
}

#[test]
fn every_command_in_the_documents_is_accepted() {
    let folder = surroundings();
    // No server listens at these addresses, and no other process has the key files.
    let file = "upstream = \"http://127.0.0.1:3000\"\n[admin]\nlisten = \"127.0.0.1:1\"\n[store]\nurl = \"sqlite:k.db\"\n\
                [[routes]]\nname = \"create-payment\"\npath = \"/v1/payments\"\n";
    for name in ["oncegate.toml", "etc/oncegate.toml"] {
        fs::write(folder.path().join(name), file).unwrap();
    }
    let mut seen = BTreeSet::new();
    for (place, mut command) in commands() {
        seen.insert(command[0].clone());
        // Long-running commands are only looked up.
        if ["conform", "run", "demo"].contains(&&*command[0]) {
            command.insert(1, "--help".to_owned());
        }
        let is_probe = command[0] == "probe";
        for word in &mut command {
            *word = match &**word {
                "ID" => "6f1d0c9a".to_owned(),
                "FILE" | "OLD" | "NEW" => "oncegate.toml".to_owned(),
                "API" => "api.yaml".to_owned(),
                "NAME" => "payments".to_owned(),
                // A probe executes operations. At port 1 nobody listens.
                "URL" => "http://127.0.0.1:1/".to_owned(),
                "$ADMIN" => "127.0.0.1:1".to_owned(),
                url if is_probe && url.contains("://") => "http://127.0.0.1:1/".to_owned(),
                word => here(word, folder.path()),
            };
        }
        let takes_file =
            !["schema", "completions", "man", "demo", "diff", "probe", "conform", "init"].contains(&&*command[0]);
        if takes_file && !command.iter().any(|word| word == "-c" || word == "--config") {
            command.extend(["-c", "oncegate.toml"].map(str::to_owned));
        }
        if command[0] == "init" {
            // It never changes a file that exists.
            drop(fs::remove_file(folder.path().join("first.toml")));
            command.extend(["-o", "first.toml"].map(str::to_owned));
        }
        let ended = oncegate(&command, folder.path());
        let output = String::from_utf8(ended.stderr).unwrap();
        // 2 means a rejected command line and 78 an invalid configuration. A refused connection is fine here.
        let is_understood = matches!(ended.status.code(), Some(0 | 1 | 69));
        assert!(is_understood && !output.contains("panicked"), "{place}: {command:?}: {output}");
    }
    for command in
        ["check", "conform", "drain", "explain", "init", "keys", "migrate", "probe", "reconcile", "report", "run"]
    {
        assert!(seen.contains(command), "no document shows `oncegate {command}`");
    }
}

#[test]
fn every_script_and_make_target_in_the_documents_exists() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let script = Regex::new(r"^(?:examples|scripts|deploy|tests|benches)/[\w./-]+$").unwrap();
    let target = Regex::new(r"^[a-z]+$").unwrap();
    let spans = Regex::new("`([^`\n]+)`").unwrap();
    let (mut wrong, mut found) = (Vec::new(), 0);
    for (name, text) in documents() {
        let (blocks, prose) = split(&name, &text);
        let typed = blocks.iter().filter(|block| ["sh", "console"].contains(&&*block.kind));
        let lines = typed.flat_map(|block| block.text.lines()).map(|line| line.trim_start().trim_start_matches("$ "));
        for line in lines.chain(spans.captures_iter(&prose).map(|span| span.extract::<1>().1[0])) {
            let mut words = line.split_whitespace();
            let is_there = match (words.next(), words.next()) {
                (Some("make"), Some(word)) if target.is_match(word) => makefile.contains(&format!("\n{word}:")),
                (Some(word), _) if script.is_match(word) => root().join(word).exists(),
                _ => continue,
            };
            found += 1;
            wrong.extend((!is_there).then(|| format!("{}: {line}", name.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found > 40, "the commands are not found: {found}");
}

/// A heading's anchor, as GitHub generates it.
fn anchors(prose: &str) -> BTreeSet<String> {
    let heading = Regex::new(r"(?m)^#{1,6} (.+)$").unwrap();
    let (mut found, mut times) = (BTreeSet::new(), BTreeMap::new());
    for title in heading.captures_iter(prose) {
        let kept = title[1].trim().to_lowercase();
        let slug: String = kept.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c)).collect();
        let slug = slug.replace(' ', "-");
        let count = times.entry(slug.clone()).and_modify(|count| *count += 1).or_insert(0);
        found.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
    }
    found
}

#[test]
fn every_link_in_the_documents_has_a_target() {
    let documents = documents();
    let anchors: BTreeMap<&Path, _> =
        documents.iter().map(|(name, text)| (&**name, anchors(&split(name, text).1))).collect();
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let (mut wrong, mut followed) = (Vec::new(), 0);
    for (name, text) in &documents {
        for found in link.captures_iter(&split(name, text).1) {
            let target = &found[1];
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            followed += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let there = if path.is_empty() { name.clone() } else { normal(&name.parent().unwrap().join(path)) };
            if !root().join(&there).exists() {
                wrong.push(format!("{}: {target}: there is no such file", name.display()));
            } else if !anchor.is_empty() && !anchors.get(&*there).is_some_and(|all| all.contains(anchor)) {
                wrong.push(format!("{}: {target}: there is no such heading", name.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(followed > 80, "the links are not found");
}

/// The documents that a document links to.
fn links(name: &Path, text: &str) -> BTreeSet<PathBuf> {
    let link = Regex::new(r"\]\(([^)#:\s]+\.md)[)#]").unwrap();
    let prose = split(name, text).1;
    link.captures_iter(&prose).map(|found| normal(&name.parent().unwrap().join(&found[1]))).collect()
}

#[test]
fn every_page_of_docs_is_in_the_order_of_reading() {
    // scripts/docs makes the site's order of these links.
    let (documents, order) = (documents(), Path::new("docs/README.md"));
    let mut listed = links(order, &documents[order]);
    for folder in listed.clone().into_iter().filter(|page| page.ends_with("README.md")) {
        let others = links(&folder, &documents[&folder]);
        listed.extend(others.into_iter().filter(|page| page.parent() == folder.parent()));
    }
    let pages = documents.keys().filter(|page| page.starts_with("docs") && *page != order);
    let missing: Vec<_> = pages.filter(|page| !listed.contains(*page)).collect();
    assert!(missing.is_empty(), "docs/README.md, or the README.md of their folder, does not list {missing:?}");
}

#[test]
fn the_first_documents_of_a_reader_stay_short() {
    for (name, most) in [("README.md", 130), ("ARCHITECTURE.md", 180), ("docs/choosing.md", 180)] {
        let lines = fs::read_to_string(root().join(name)).unwrap().lines().count();
        assert!(lines <= most, "{name} has {lines} lines, more than {most}: move details to a page of docs/");
    }
}

#[test]
fn every_threat_has_a_test_that_exists_or_says_that_there_is_no_defence() {
    let text = fs::read_to_string(root().join("docs/security.md")).unwrap();
    let (_, threats) = text.split_once("\n## Threats\n").unwrap();
    let rows: Vec<_> =
        threats.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| threat ")).collect();
    assert!(rows.len() > 40, "the threats are not found");
    for row in rows {
        assert!(count_existing_tests(row) > 0 || row.contains("**Not defended**"), "no test: {row}");
    }
}

/// The number of tests that a text names as `file.rs::name`. All of them exist.
fn count_existing_tests(text: &str) -> usize {
    let place = Regex::new(r"`([\w./-]+\.rs)::(\w+)`").unwrap();
    let check = |test: regex::Captures<'_>| {
        let file = fs::read_to_string(root().join(&test[1])).unwrap_or_else(|error| panic!("{}: {error}", &test[1]));
        assert!(file.contains(&format!("fn {}(", &test[2])), "{} has no {}", &test[1], &test[2]);
    };
    place.captures_iter(text).map(check).count()
}

#[test]
fn every_seeded_bug_is_in_the_table_with_tests_that_exist() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let (table, bugs) = (read("tests/long-runs/seeded-bugs.md"), read("mutants/seeded_bugs.toml"));
    let bugs: BTreeSet<_> = bugs.lines().filter_map(|line| line.strip_prefix("[[")?.strip_suffix("]]")).collect();
    let row = Regex::new(r"(?m)^\| `([A-Z]\w+)` \|.*$").unwrap();
    let rows: Vec<_> = row.captures_iter(&table).collect();
    assert_eq!(rows.iter().map(|row| row.get(1).unwrap().as_str()).collect::<BTreeSet<_>>(), bugs);
    for row in rows {
        assert!(count_existing_tests(&row[0]) > 0, "no test: {}", &row[0]);
    }
}

#[test]
fn every_promise_and_every_fault_is_in_the_table_with_tests_that_exist() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let (promises, tests) = (read("docs/promises.md"), read("tests/promises.md"));
    let first_cell = |line: &str| line.split(" | ").next().unwrap().trim_start_matches("| ").to_owned();
    let rows = |text: &str, title: &str| {
        let table = text.lines().skip_while(|line| !line.starts_with(title)).skip(2);
        table.take_while(|line| line.starts_with('|')).map(str::to_owned).collect::<Vec<_>>()
    };
    let numbered = Regex::new(r"(?m)^(\d\. )\*\*(.+?)\.?\*\*").unwrap();
    let promised = numbered.captures_iter(&promises).map(|promise| format!("{}{}", &promise[1], &promise[2]));
    let faults = rows(&promises, "| fault | ").iter().map(|row| first_cell(row)).collect::<Vec<_>>();
    let expected: Vec<_> = promised.chain(faults).collect();
    assert!(expected.len() > 5 + 10, "the promises and faults are not found");
    let table = rows(&tests, "| promise or fault | ");
    assert_eq!(table.iter().map(|row| first_cell(row)).collect::<Vec<_>>(), expected);
    for row in table {
        assert!(count_existing_tests(&row) > 0, "no test: {row}");
    }
}

/// The path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part.as_os_str().to_str().unwrap() {
            ".." => assert!(normal.pop(), "{} leads out of the project", path.display()),
            "." => {}
            part => normal.push(part),
        }
    }
    normal
}

/// The decision records: their texts by the names of their files.
fn decision_records() -> BTreeMap<String, String> {
    let records = documents().into_iter().filter(|(name, _)| name.parent() == Some(Path::new("docs/decisions")));
    let named = records.map(|(name, text)| (name.file_name().unwrap().to_str().unwrap().to_owned(), text));
    named.filter(|(name, _)| name != "README.md").collect()
}

#[test]
fn the_decision_records_are_few_short_and_in_their_index() {
    let index = fs::read_to_string(root().join("docs/decisions/README.md")).unwrap();
    let listed: Vec<_> = index.lines().filter(|line| line.starts_with("- ")).collect();
    let records = decision_records();
    assert!((1..=31).contains(&records.len()), "{} records", records.len());
    let line = |(number, (name, text)): (usize, (&String, &String))| {
        let lines = text.lines().count();
        assert!(lines <= 40, "{name} has {lines} lines");
        let (begin, title) = text.lines().next().unwrap().strip_prefix("# ").unwrap().split_once(' ').unwrap();
        assert!(begin == format!("{number:04}") && name.starts_with(&format!("{begin}-")), "{name}: {begin}");
        format!("- [{begin}]({name}) {title}")
    };
    assert_eq!(listed, (1..).zip(&records).map(line).collect::<Vec<_>>());
}

#[test]
fn the_code_refers_to_each_decision_record_and_each_record_to_files_that_exist() {
    fn collect(folder: &Path, found: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "sql") {
                found.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut code = String::new();
    for folder in ["src", "crates", "migrations"] {
        collect(&root().join(folder), &mut code);
    }
    let records = decision_records();
    let reference = Regex::new(r"docs/decisions/([\w-]+\.md)").unwrap();
    let referred: BTreeSet<_> = reference.captures_iter(&code).map(|found| found[1].to_owned()).collect();
    assert_eq!(referred, records.keys().cloned().collect());
    let place = Regex::new(r"`((?:src|crates|migrations|tests)/[\w./-]+)`").unwrap();
    for (name, text) in records {
        let places: Vec<_> = place.captures_iter(&text).map(|found| found[1].to_owned()).collect();
        assert!(!places.is_empty(), "{name} names no place");
        for place in places {
            assert!(root().join(&place).exists(), "{name}: {place} does not exist");
        }
    }
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let alerts = fs::read_to_string(root().join("deploy/prometheus/alerts.yml")).unwrap();
    let list = fs::read_to_string(root().join("docs/runbooks/README.md")).unwrap();
    let each = Regex::new(
        r"- alert: (\w+)\n(?:(?:        |\n).*\n)*?          summary: (.+)\n.*\n          runbook_url: '\{\{.*\}\}/runbooks/([a-z-]+)'\n",
    )
    .unwrap();
    let mut pages = BTreeSet::new();
    for alert in each.captures_iter(&alerts) {
        let page = format!("{}.md", &alert[3]);
        assert!(root().join("docs/runbooks").join(&page).exists(), "{}: {page}", &alert[1]);
        assert!(alert[2].contains("$labels.service"), "{} does not name the service", &alert[1]);
        assert!(list.contains(&format!("`{}`", &alert[1])), "{} is in no line of the list", &alert[1]);
        pages.insert(OsString::from(page));
    }
    let groups = Regex::new(r" by \(([^)]*)\)").unwrap();
    for group in groups.captures_iter(&alerts) {
        assert!(group[1].contains("service") && group[1].contains("namespace"), "{}", &group[0]);
    }
    assert_eq!(alerts.matches("- alert: ").count(), each.captures_iter(&alerts).count());
    for page in fs::read_dir(root().join("docs/runbooks")).unwrap() {
        let page = page.unwrap().file_name();
        assert!(page == "README.md" || pages.contains(&page), "{page:?} is no alert's");
    }
}

#[test]
fn the_systemd_unit_keeps_trying_until_its_store_is_there_and_stops_at_a_wrong_configuration() {
    let unit = fs::read_to_string(root().join("deploy/debian/oncegate.service")).unwrap();
    let (head, service) = unit.split_once("[Service]").unwrap();
    let is_set = |section: &str, line: &str| section.lines().any(|written| written == line);
    // systemd.unit(5): the limit counts five starts in ten seconds unless the unit says otherwise, and 0 turns it off.
    assert!(is_set(head, "StartLimitIntervalSec=0"), "{head}");
    for line in ["Restart=on-failure", "RestartSec=2", "RestartPreventExitStatus=78"] {
        assert!(is_set(service, line), "{line}");
    }
    // Its failure would not prevent a restart.
    assert!(!service.contains("ExecStartPre"));
}

#[test]
fn the_table_of_schemes_is_that_of_the_code() {
    let text = fs::read_to_string(root().join("docs/callers.md")).unwrap();
    let (_, section) = text.split_once("\n## Credentials that differ with each try\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| `")).collect();
    let expected: Vec<_> = SCHEMES
        .iter()
        .map(|row| {
            let names: Vec<_> = row.names.iter().map(|name| format!("`{name}`")).collect();
            let life = match row.life {
                CredentialLife::Same => "yes",
                CredentialLife::SameUnlessSigned => "without a signature",
                CredentialLife::Differs => "**no: refused**",
                CredentialLife::NamesNobody => "**no: ignored**",
            };
            format!("| {} | {life} | {} |", names.join(", "), row.reason)
        })
        .collect();
    assert_eq!(rows, expected);
    let section = section.replace('\n', " ");
    for name in BETRAYING_NAMES.iter().chain(&BETRAYING_ENDS) {
        assert!(section.contains(&format!("`{name}`")), "{name}");
    }
}

/// The frame of all pages, those that say one thing in a sentence or two, those with a document of this folder, and the
/// one that a browser leaves at once.
const WITHOUT_PICTURE: [&str; 6] = ["base", "gone", "message", "problem", "runbook", "signed_in"];

#[test]
fn each_page_of_the_admin_listener_has_a_picture_in_its_document() {
    let document = fs::read_to_string(root().join("docs/admin.md")).unwrap();
    let mut pages = vec!["stream".to_owned()];
    for template in fs::read_dir(root().join("crates/admin/src/page")).unwrap().map(|entry| entry.unwrap().path()) {
        let is_page = |text: String| text.starts_with("{% extends");
        if template.extension().is_some_and(|kind| kind == "html") && is_page(fs::read_to_string(&template).unwrap()) {
            pages.push(template.file_stem().unwrap().to_string_lossy().into_owned());
        }
    }
    assert!(pages.len() > 10, "{pages:?}");
    let is_shown = |page: &String| {
        // The overview is also the first picture of the README.
        let name = if page == "overview" { "page-light.png".to_owned() } else { format!("page-{page}.png") };
        root().join("docs/images").join(&name).is_file() && document.contains(&format!("(images/{name})"))
    };
    let missing: Vec<_> = pages.iter().filter(|page| !WITHOUT_PICTURE.contains(&&***page) && !is_shown(page)).collect();
    assert!(missing.is_empty(), "no picture in docs/admin.md, see `make pictures`: {missing:?}");
}
