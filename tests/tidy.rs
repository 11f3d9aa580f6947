//! Checks the structure: modules use only lower layers, files use each other in one direction, each part stays within
//! its budget of lines, files stay small, comments narrow, each type name is defined once, no crate has unsafe code,
//! each SQL file starts with its name, and tests wait for events.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The modules of source folders: each may use the modules of later layers; modules of one layer do not use each other.
/// Below them are the crates, whose manifests say what they use.
const LAYERS: [(&str, &[&[&str]]); 2] =
    [("src", &[&["main"], &["cli"], &["app"]]), ("crates/engine/src", &[&["tasks"], &["gate"], &["instance"]])];

/// The source folder that has the gate.
const GATE: &str = "crates/engine/src";

/// The most lines of each part, and the most words of the documents of each folder, as `scripts/house` counts them.
const BUDGETS: &[(&str, &str, usize)] = &[
    ("apart", "total", 8_273),
    ("apart", "crates/store-contract", 5_679),
    ("apart", "crates/framing-guard", 1_450),
    ("apart", "crates/canonical-json", 1_200),
    ("production", "total", 77_773),
    ("production", "crates/store", 10_544),
    ("production", "crates/engine/gate", 8_514),
    ("production", "crates/http", 7_317),
    ("production", "crates/admin", 7_480),
    ("production", "crates/domain", 9_311),
    ("production", "crates/config", 7_302),
    ("production", "crates/brokers", 3_800),
    ("production", "crates/engine/instance", 4_263),
    ("production", "crates/settings", 4_585),
    ("production", "src/cli", 4_177),
    ("production", "crates/probe", 2_300),
    ("production", "src/app", 2_343),
    ("production", "crates/telemetry", 1_934),
    ("production", "crates/engine/tasks", 1_357),
    ("production", "crates/trust", 1_215),
    ("production", "crates/cache", 850),
    ("production", "crates/demo", 450),
    ("production", "crates/machine", 80),
    ("production", "src/main", 20),
    ("production", "crates/engine/lib", 10),
    ("production", "src/lib", 10),
    ("words", "total", 98_037),
    ("words", "docs", 60_175),
    ("words", "docs/decisions", 10_291),
    ("words", ".", 9_440),
    ("words", "docs/runbooks", 5_132),
    ("words", "benches", 3_538),
    ("words", "deploy", 3_561),
    ("words", "crates", 2_000),
    ("words", "tests/long-runs", 1_150),
    ("words", "examples", 1_360),
    ("words", "migrations", 750),
    ("words", "tests/faults", 400),
    ("words", "tests", 365),
    ("yard", "tests", 58_221),
    ("yard", "inline-tests", 20_113),
    ("yard", "benches", 3_676),
    ("yard", "fuzz", 3_350),
    ("yard", "scripts", 1_330),
    ("yard", "mutants", 1_180),
];

/// Files with more than 500 lines of production, and type names that are defined twice, each with its reason.
const LARGE: [(&str, &str); 0] = [];
const TWICE: [(&str, &str); 0] = [];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The figures that `scripts/house --all` prints, each with its group and its name.
static HOUSE: LazyLock<Vec<(String, String, usize)>> = LazyLock::new(|| {
    let printed = Command::new(root().join("scripts/house")).arg("--all").output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let figure = |line: &str| {
        let [group, name, number] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        (group.to_owned(), name.to_owned(), number.parse().unwrap())
    };
    String::from_utf8(printed.stdout).unwrap().lines().map(figure).collect()
});

/// The figures of a group.
fn figures(group: &str) -> impl Iterator<Item = (&'static str, usize)> {
    HOUSE.iter().filter(move |(of, ..)| of == group).map(|(_, name, number)| (&**name, *number))
}

/// The top module of a source file.
fn module(folder: &Path, file: &Path) -> String {
    let first = file.strip_prefix(folder).unwrap().components().next().unwrap();
    first.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// The modules after a `crate::`, either one or a group in braces.
fn modules(path: &str) -> Vec<String> {
    let name = |path: &str| path.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    match path.strip_prefix('{') {
        None => vec![name(path)],
        Some(group) => {
            group.split('}').next().unwrap().split(',').map(name).filter(|name: &String| !name.is_empty()).collect()
        }
    }
}

#[test]
fn modules_use_only_lower_layers() {
    let mut wrong = Vec::new();
    for (folder, layers) in LAYERS {
        let folder = root().join(folder);
        let layer = |module: &str| {
            let found = layers.iter().position(|layer| layer.contains(&module));
            found.unwrap_or_else(|| panic!("the module {module} is in no layer of tests/tidy.rs"))
        };
        for file in files(&folder, "rs") {
            let from = module(&folder, &file);
            if from == "lib" {
                continue;
            }
            for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
                let code = line.split("//").next().unwrap();
                for to in code.split("crate::").skip(1).flat_map(modules) {
                    if to != from && layer(&to) <= layer(&from) {
                        wrong.push(format!("{}:{}: {from} uses {to}", file.display(), number + 1));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The folders of all crates but the model, whose names are those of what it models.
fn crate_folders() -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    [root().to_owned()].into_iter().chain(crates.filter(|folder| !folder.ends_with("model"))).collect()
}

/// The source folders of all crates.
fn source_folders() -> Vec<PathBuf> {
    crate_folders().iter().map(|folder| folder.join("src")).collect()
}

/// The code of a file without its comments and its own tests.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let (mut lines, mut code) = (text.lines(), String::new());
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" {
            let item = lines.by_ref().find(|line| !line.starts_with("#["));
            if !item.is_some_and(|item| item.ends_with([';', '}'])) {
                lines.by_ref().find(|line| line.starts_with('}'));
            }
        } else {
            code += line.split("//").next().unwrap();
            code.push('\n');
        }
    }
    // Where an item may be seen is no use of it.
    code.replace("pub(in crate::gate) ", "pub(super) ")
}

#[test]
fn each_part_stays_within_its_budget() {
    let budgets: BTreeMap<_, _> = BUDGETS.iter().map(|(group, part, most)| ((*group, *part), *most)).collect();
    let groups: BTreeSet<_> = BUDGETS.iter().map(|(group, ..)| *group).collect();
    let parts: BTreeMap<_, _> =
        groups.iter().flat_map(|group| figures(group).map(|(part, figure)| ((*group, part), figure))).collect();
    let gone = budgets.keys().filter(|part| !parts.contains_key(part)).map(|part| format!("{part:?} is gone"));
    let larger = parts.iter().filter(|(part, figure)| budgets.get(part).is_none_or(|most| *figure > most));
    let larger = larger.map(|(part, figure)| match budgets.get(part) {
        Some(most) => format!("{part:?} has {figure}, its budget is {most}"),
        None => format!("{part:?} has {figure} and no budget"),
    });
    let wrong: Vec<_> = gone.chain(larger).collect();
    assert!(
        wrong.is_empty(),
        "{}\nCut something, or change the budget in tests/tidy.rs: name in the same commit what was cut elsewhere, or why \
         nothing could be.",
        wrong.join("\n")
    );
}

#[test]
fn no_type_name_is_defined_twice() {
    let twice: Vec<_> = figures("twice").filter(|(name, _)| !TWICE.iter().any(|(known, _)| known == name)).collect();
    assert!(twice.is_empty(), "{twice:#?}");
}

#[test]
fn comments_are_at_most_120_columns_wide() {
    let wide: Vec<_> = figures("wide").collect();
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn files_stay_below_the_line_limit() {
    let large: Vec<_> = figures("large").filter(|(file, _)| !LARGE.iter().any(|(known, _)| known == file)).collect();
    assert!(large.is_empty(), "{large:#?}");
}

/// A module's path below its crate, such as `gate::admit`.
type ModulePath = Vec<String>;

/// The modules of a crate by their paths, each with the paths that its code uses.
struct Modules {
    used: BTreeMap<ModulePath, Vec<ModulePath>>,
    /// For each module, its re-exported names and their modules.
    reexports: BTreeMap<ModulePath, BTreeMap<String, ModulePath>>,
}

impl Modules {
    fn read(folder: &Path) -> Self {
        let mut modules = Self { used: BTreeMap::new(), reexports: BTreeMap::new() };
        let path = |file: &Path| -> ModulePath {
            let path = file.strip_prefix(folder).unwrap().with_extension("");
            path.iter().map(|part| part.to_str().unwrap().to_owned()).filter(|part| part != "lib").collect()
        };
        let files = files(folder, "rs");
        let paths: BTreeSet<_> = files.iter().map(|file| path(file)).collect();
        for file in &files {
            let here = path(file);
            let text = code(file);
            let (mut used, mut reexports) = (Vec::new(), BTreeMap::new());
            let absolute = |path: &[String]| -> Option<ModulePath> {
                let (first, rest) = path.split_first()?;
                let child = || [&here[..], path].concat();
                match first.as_str() {
                    "crate" => Some(rest.to_vec()),
                    "self" => Some([&here[..], rest].concat()),
                    "super" => Some([&here[..here.len() - 1], rest].concat()),
                    _ => paths.contains(&[&here[..], std::slice::from_ref(first)].concat()).then(child),
                }
            };
            for (is_public, path) in use_paths(&text) {
                let Some(path) = absolute(&path) else { continue };
                if is_public {
                    reexports.insert(path.last().unwrap().clone(), path.clone());
                }
                used.push(path);
            }
            for start in ["crate::", "super::"] {
                let others = text.split(start).skip(1).map(|rest| {
                    let path: String = rest.chars().take_while(|c| c.is_alphanumeric() || "_:".contains(*c)).collect();
                    format!("{start}{path}").split("::").map(str::to_owned).collect::<ModulePath>()
                });
                used.extend(others.filter_map(|path| absolute(&path)));
            }
            modules.used.insert(here.clone(), used);
            modules.reexports.insert(here, reexports);
        }
        modules
    }

    /// The module that a path leads to, with re-exports followed.
    fn module_of(&self, path: &[String]) -> Option<ModulePath> {
        let length = (0..=path.len()).rev().find(|length| self.used.contains_key(&path[..*length]))?;
        let (module, rest) = path.split_at(length);
        match rest.first().and_then(|name| self.reexports[module].get(name)) {
            Some(target) if target[..] != *path => self.module_of(target),
            _ => Some(module.to_vec()),
        }
    }

    /// For each module, the modules that it uses. A module and its own submodules count as one, and are left out.
    fn arrows(&self) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
        let arrow = |from: &ModulePath, to: &ModulePath| -> Option<ModulePath> {
            let to = self.module_of(to)?;
            (!to.is_empty() && !to.starts_with(from) && !from.starts_with(&to)).then_some(to)
        };
        let arrows = |(from, used): (&ModulePath, &Vec<ModulePath>)| {
            (from.clone(), used.iter().filter_map(|to| arrow(from, to)).collect())
        };
        self.used.iter().map(arrows).collect()
    }
}

/// The paths of all `use` declarations, and whether each is a re-export.
fn use_paths(code: &str) -> Vec<(bool, ModulePath)> {
    fn flatten(tree: &str, prefix: &[String], found: &mut Vec<ModulePath>) {
        let tree = tree.trim();
        match tree.split_once('{') {
            Some((before, group)) => {
                let names = before.trim_end_matches("::").split("::").filter(|name| !name.is_empty());
                let prefix: ModulePath = prefix.iter().cloned().chain(names.map(str::to_owned)).collect();
                let (mut depth, mut start) = (0, 0);
                let group = group.strip_suffix('}').unwrap_or(group);
                for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
                    match c {
                        '{' => depth += 1,
                        '}' => depth -= 1,
                        ',' if depth == 0 => {
                            flatten(&group[start..at], &prefix, found);
                            start = at + 1;
                        }
                        _ => {}
                    }
                }
            }
            None if tree.is_empty() => {}
            None => {
                let names =
                    tree.split(" as ").next().unwrap().split("::").filter(|name| !matches!(*name, "self" | "*"));
                let own = |first: bool| !first || prefix.is_empty();
                let leading = tree.starts_with("self::") && own(true);
                let names = names.map(str::to_owned);
                found.push(prefix.iter().cloned().chain(leading.then(|| "self".to_owned())).chain(names).collect());
            }
        }
    }
    let mut found = Vec::new();
    let statements = code.split(';').filter_map(|statement| {
        let at = statement.rfind("use ").filter(|at| {
            let before = statement[..*at]
                .trim_end_matches("pub ")
                .trim_end_matches("pub(super) ")
                .trim_end_matches("pub(crate) ");
            before.is_empty() || before.ends_with(['\n', ' '])
        })?;
        let is_public = statement[..at].trim_end().ends_with("pub") || statement[..at].trim_end().ends_with(')');
        Some((is_public, &statement[at + 4..]))
    });
    for (is_public, tree) in statements {
        let mut paths = Vec::new();
        flatten(&tree.split_whitespace().collect::<Vec<_>>().join(" "), &[], &mut paths);
        found.extend(paths.into_iter().filter(|path| !path.is_empty()).map(|path| (is_public, path)));
    }
    found
}

/// The arrows from which one comes back to where they begin.
fn cycles(arrows: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<String> {
    let reached = |from: &ModulePath| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = open.pop() {
            open.extend(arrows[&module].iter().filter(|to| reached.insert((*to).clone())).cloned());
        }
        reached
    };
    arrows
        .iter()
        .flat_map(|(from, to)| to.iter().map(move |to| (from, to)))
        .filter(|(from, to)| reached(to).contains(*from))
        .map(|(from, to)| format!("{} uses {}", from.join("::"), to.join("::")))
        .collect()
}

#[test]
fn files_use_each_other_in_one_direction() {
    let mut found = 0;
    for folder in source_folders() {
        let arrows = Modules::read(&folder).arrows();
        found += arrows.values().flatten().count();
        let cycles = cycles(&arrows);
        assert!(cycles.is_empty(), "{cycles:#?}");
    }
    assert!(found > 500, "{found} arrows are too few: they are not read");
}

/// The methods of the gate's own types are spread over its files, so a call is an arrow too: `self.wait(…)` leads to
/// `wait.rs`. A parent, such as `gate.rs` or `admit.rs`, uses the files of its folder.
#[test]
fn files_of_the_gate_call_methods_in_one_direction() {
    const OWN: [&str; 4] = ["self", "gate", "guarded", "observation"];
    let folder = root().join(GATE);
    let mut modules = Modules::read(&folder);
    let gate: Vec<_> = modules
        .used
        .keys()
        .filter(|module| {
            module.first().is_some_and(|name| name == "gate") && module.last().is_some_and(|name| name != "tests")
        })
        .cloned()
        .collect();
    let text = |module: &ModulePath| code(&folder.join(module.join("/")).with_extension("rs"));
    let mut defined = BTreeMap::<String, BTreeSet<ModulePath>>::new();
    for module in &gate {
        for line in text(module).lines().filter_map(|line| line.strip_prefix("    ")) {
            let function = line.split_once("fn ").filter(|(before, _)| !before.starts_with(' '));
            if let Some((_, function)) = function {
                let name = function.split(['(', '<']).next().unwrap().to_owned();
                defined.entry(name).or_default().insert(module.clone());
            }
        }
    }
    let mut calls = 0;
    for module in &gate {
        let text = text(module);
        for call in OWN.iter().flat_map(|own| text.split(&format!("{own}.")).skip(1).collect::<Vec<_>>()) {
            let Some((name, _)) = call.split_once('(') else { continue };
            if let Some(files) = defined.get(name).filter(|files| files.len() == 1 && !files.contains(module)) {
                calls += 1;
                modules.used.get_mut(module).unwrap().extend(files.iter().cloned());
            }
        }
    }
    assert!(calls > 20, "the methods of the gate are not found");
    let arrows = |from: &ModulePath| -> BTreeSet<ModulePath> {
        let children = gate.iter().filter(|to| to.len() > from.len() && to.starts_with(from)).cloned();
        let items = modules.used[from].iter().filter(|to| to.last().is_some_and(|name| !name.is_empty()));
        let used = items.filter_map(|to| modules.module_of(to));
        children.chain(used).filter(|to| to != from && gate.contains(to)).collect()
    };
    let arrows: BTreeMap<_, _> = gate.iter().map(|from| (from.clone(), arrows(from))).collect();
    assert_eq!(cycles(&arrows), [] as [String; 0]);
}

#[test]
fn every_crate_forbids_unsafe_code() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("\n[workspace.lints.rust]\nunsafe_code = \"forbid\"\n"));
    for folder in crate_folders() {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        assert!(manifest.contains("\n[lints]\nworkspace = true\n"), "{}", folder.display());
    }
}

#[test]
fn every_sql_file_starts_with_its_name() {
    for folder in ["sql", "postgres/sql", "postgres/functions", "sqlite/sql"] {
        let sql = files(&root().join("crates/store/src").join(folder), "sql");
        assert!(!sql.is_empty());
        for file in sql {
            let text = fs::read_to_string(&file).unwrap();
            let name = file.file_stem().unwrap().to_str().unwrap();
            let first = text.lines().next().unwrap_or_default();
            assert!(first.starts_with(&format!("-- {name}: ")), "{} begins with {first:?}", file.display());
        }
    }
}

/// The list by which `oncegate report` tells Oncegate's own words in a log.
const LOG_MESSAGES: &str = "crates/telemetry/src/logs/messages.txt";

/// The messages of all log lines and errors, with `{}` for what they insert. A message is the first literal that is an
/// argument by itself. One with hardly a word of its own fits any text, and is no help.
fn log_messages() -> String {
    const MAKERS: [&str; 7] = ["::debug!", "::error!", "::info!", "::trace!", "::warn!", "#[error", "log_unknown"];
    let mut messages = BTreeSet::new();
    for file in source_folders().iter().flat_map(|folder| files(folder, "rs")) {
        let text = fs::read_to_string(file).unwrap();
        let made = text.match_indices('(').filter(|(at, _)| MAKERS.iter().any(|maker| text[..*at].ends_with(maker)));
        messages.extend(made.filter_map(|(at, _)| first_literal(&text[at + 1..])));
    }
    let messages = messages.into_iter().filter(|message| !message.contains("{}") || message.len() > 12);
    messages.map(|message| message + "\n").collect()
}

fn first_literal(arguments: &str) -> Option<String> {
    let (mut depth, mut before, mut rest) = (0, ',', arguments.chars());
    while let Some(c) = rest.next() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return None,
            ')' | ']' | '}' => depth -= 1,
            '"' => {
                let (mut literal, mut is_inserted) = (String::new(), false);
                while let Some(c) = rest.next().filter(|c| *c != '"') {
                    match c {
                        '\\' if rest.as_str().starts_with('\n') => rest = rest.as_str().trim_start().chars(),
                        '\\' => literal.extend(rest.next()),
                        '}' => is_inserted = false,
                        _ if is_inserted => {}
                        '{' => {
                            is_inserted = true;
                            literal.push_str("{}");
                        }
                        _ => literal.push(c),
                    }
                }
                if depth == 0 && before == ',' {
                    return Some(literal);
                }
            }
            _ => {}
        }
        if !c.is_whitespace() {
            before = c;
        }
    }
    None
}

#[test]
fn the_list_of_log_messages_is_that_of_the_code() {
    let written = fs::read_to_string(root().join(LOG_MESSAGES)).unwrap_or_default();
    assert!(written == log_messages(), "{LOG_MESSAGES} is stale: run `make docs-write`");
    assert!(written.lines().count() > 150, "{written}");
}

#[test]
#[ignore = "writes into the repository: `make docs-write`"]
fn write_the_list_of_log_messages() {
    fs::write(root().join(LOG_MESSAGES), log_messages()).unwrap();
}

/// A fixed wait is too short on a busy machine and too long on all others. Above one that has a reason, such as the
/// pace of a load or the slowness of a service, a comment begins with [`TIME`] and says the reason. The harness may
/// pause between two looks.
#[test]
fn tests_wait_for_events_and_not_for_time() {
    const TIME: &str = "// Time and not an event: ";
    let programs = ["journey", "stores", "operations"].map(|program| root().join("tests").join(program));
    let (mut allowed, mut wrong) = (0, Vec::new());
    for file in programs.iter().flat_map(|folder| files(folder, "rs")) {
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap();
            if !["sleep(", "sleep_until(", "sleep_ms("].iter().any(|wait| code.contains(wait)) {
                continue;
            }
            let mut comment = lines[..number].iter().rev().take_while(|line| line.starts_with("//"));
            match comment.any(|line| line.starts_with(TIME)) {
                true => allowed += 1,
                false => wrong.push(format!("{}:{}: {line}", file.display(), number + 1)),
            }
        }
    }
    assert!(wrong.is_empty(), "wait for an event, or write `{TIME}…` above:\n{}", wrong.join("\n"));
    assert!(allowed > 5, "{allowed} waits are too few: they are not found");
}

#[test]
fn the_readme_quotes_the_minimal_configuration() {
    let file = fs::read_to_string(root().join("config/minimal.toml")).unwrap();
    let keys: String = file
        .lines()
        .skip_while(|line| line.starts_with('#') || line.is_empty())
        .map(|line| format!("{line}\n"))
        .collect();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.contains(&keys), "config/minimal.toml and the README differ");
}
