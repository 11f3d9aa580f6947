//! The options that a file writes, by which a reload says what has changed.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};
use toml::de::{DeTable, DeValue};

/// The hash of each value as the file writes it, by its table in a list (empty for all others) and its option.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WrittenOptions(BTreeMap<(String, String), [u8; 32]>);

impl WrittenOptions {
    pub(super) fn read(table: &DeTable<'_>) -> Self {
        let mut options = Self::default();
        options.add("", "", table);
        options
    }

    fn add(&mut self, of: &str, before: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let option = format!("{before}{}", key.get_ref());
            match value.get_ref() {
                DeValue::Table(table) => self.add(of, &format!("{option}."), table),
                DeValue::Array(items) if of.is_empty() && items.iter().any(|item| item.get_ref().is_table()) => {
                    let tables = items.iter().filter_map(|item| item.get_ref().as_table());
                    for (index, table) in tables.enumerate() {
                        let name = table.get("name").and_then(|name| name.get_ref().as_str());
                        let of = name.map_or_else(|| format!("{option}[{index}]"), |name| format!("{option}.{name}"));
                        self.add(&of, "", table);
                    }
                }
                value => drop(self.0.insert((of.to_owned(), option), Sha256::digest(text_of(value)).into())),
            }
        }
    }

    /// The options that differ, and the tables of lists that only one of both has.
    pub(super) fn list_changes(&self, newer: &Self) -> BTreeSet<String> {
        let has_table = |options: &Self, of: &str| options.0.keys().any(|(other, _)| other == of);
        let keys = self.0.keys().chain(newer.0.keys()).filter(|key| self.0.get(*key) != newer.0.get(*key));
        keys.map(|(of, option)| match has_table(self, of) && has_table(newer, of) {
            _ if of.is_empty() => option.clone(),
            true => format!("{of}.{option}"),
            false => of.clone(),
        })
        .collect()
    }
}

/// A value without its places in the file.
fn text_of(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => format!("{} {}", number.radix(), number.as_str()),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(items) => items.iter().map(|item| format!("{},", text_of(item.get_ref()))).collect(),
        DeValue::Table(table) => {
            table.iter().map(|(key, value)| format!("{:?}={};", key.get_ref(), text_of(value.get_ref()))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_named_by_its_option_and_nothing_else_is_one() {
        const BEFORE: &str = "secret = 'a'\nstore = { lease.expiry = '9s' }\n[[routes]]\nname = 'pay'\npath = '/pay'\n\
                              outcome = [{ pointer = '/a', is = 'store' }]\n[[routes]]\nname = 'refund'\npath = '/refund'\n\
                              [[consumers]]\nqueue = 'q'\nroute = 'pay'\n";
        let read = |text: &str| WrittenOptions::read(DeTable::parse(text).expect(text).get_ref());
        let renamed = BEFORE.replace("'refund'", "'return'");
        let order = "[[routes]]\nname = 'refund'\npath = '/refund'\n";
        for (after, changes) in [
            (BEFORE.to_owned(), &[][..]),
            (format!("# a comment\n\n{BEFORE}"), &[]),
            (BEFORE.replace(order, "").replace("[[consumers]]", &format!("{order}[[consumers]]")), &[]),
            (BEFORE.replace("'a'\nstore", "'b'\nstore"), &["secret"]),
            (BEFORE.replace("9s", "8s"), &["store.lease.expiry"]),
            (format!("unguarded = 'refuse'\n{BEFORE}"), &["unguarded"]),
            (BEFORE.replace("'/pay'", "'/pay'\nttl = '1h'"), &["routes.pay.ttl"]),
            (BEFORE.replace("'/pay'\n", "'/pay'\nkey.required = true\n"), &["routes.pay.key.required"]),
            (BEFORE.replace("'store' }", "'release' }"), &["routes.pay.outcome"]),
            (renamed, &["routes.refund", "routes.return"]),
            (BEFORE.replace("queue = 'q'", "queue = 'r'"), &["consumers[0].queue"]),
            (format!("{BEFORE}[[events]]\nname = 'shop'\nurl = 'http://a'\n"), &["events.shop"]),
        ] {
            let found = read(BEFORE).list_changes(&read(&after));
            assert_eq!(found.iter().map(|change| &**change).collect::<Vec<_>>(), changes, "{after}");
        }
    }
}
