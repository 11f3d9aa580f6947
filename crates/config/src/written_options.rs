//! Reads the options that a file writes, each by the hash of its value.

use sha2::{Digest, Sha256};
use toml::de::{DeTable, DeValue};

use super::source_texts::SourceTexts;
use oncegate_settings::WrittenOptions;

/// Reads all options of the files. Where there are several, each option says its own.
pub(super) fn read(table: &DeTable<'_>, texts: &SourceTexts) -> WrittenOptions {
    let mut options = WrittenOptions::default();
    let place = |offset| match texts.has_included() {
        true => format!("{}: ", texts.name_at(offset).unwrap_or_default()),
        false => String::new(),
    };
    for (key, value) in table {
        let (key, option) = (key.get_ref(), format!("{}{}", place(key.span().start), key.get_ref()));
        match value.get_ref() {
            DeValue::Table(table) => add_options(&mut options, "", &format!("{option}."), table),
            DeValue::Array(items) if items.iter().any(|item| item.get_ref().is_table()) => {
                for (index, item) in texts.by_file(items) {
                    let Some(table) = item.get_ref().as_table() else { continue };
                    let name = table.get("name").and_then(|name| name.get_ref().as_str());
                    let of = name.map_or_else(|| format!("{key}[{index}]"), |name| format!("{key}.{name}"));
                    add_options(&mut options, &format!("{}{of}", place(item.span().start)), "", table);
                }
            }
            value => add_option(&mut options, "", option, value),
        }
    }
    options
}

fn add_options(options: &mut WrittenOptions, of: &str, before: &str, table: &DeTable<'_>) {
    for (key, value) in table {
        let option = format!("{before}{}", key.get_ref());
        match value.get_ref() {
            DeValue::Table(table) => add_options(options, of, &format!("{option}."), table),
            value => add_option(options, of, option, value),
        }
    }
}

fn add_option(options: &mut WrittenOptions, of: &str, option: String, value: &DeValue<'_>) {
    options.0.insert((of.to_owned(), option), Sha256::digest(text_of(value)).into());
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
        let read = |text: &str| read(&SourceTexts::of_text(text).parse().expect(text), &SourceTexts::of_text(text));
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
