//! What a model's README says about where the model comes from.

use crate::hub::RepoId;

/// Repositories the card names as `base_model`, in its order; a name that is none is passed over.
pub fn base_models(readme: &str) -> Vec<RepoId> {
    let mut out = Vec::new();
    let mut inside = false;
    for line in front_matter(readme) {
        if let Some(value) = line.strip_prefix("base_model:") {
            inside = value.trim().is_empty();
            let values = value.trim().trim_start_matches('[').trim_end_matches(']').split(',');
            out.extend(values.filter_map(repo));
        } else if let Some(item) = line.trim_start().strip_prefix("- ").filter(|_| inside) {
            out.extend(repo(item));
        } else {
            inside = false;
        }
    }
    out
}

/// `owner/name` of the repository itself: converters begin the text with it as a title.
pub fn own_name(readme: &str) -> Option<RepoId> {
    let mut lines = readme.lines().map(str::trim);
    let title = lines.find_map(|line| line.strip_prefix("# "))?;
    title.trim().parse().ok()
}

/// The lines between the two `---` at the head.
fn front_matter(readme: &str) -> impl Iterator<Item = &str> {
    let text = readme.trim_start_matches('\u{feff}');
    let mut lines = text.lines();
    let begins = lines.next().is_some_and(|line| line.trim_end() == "---");
    lines.take_while(move |line| begins && line.trim_end() != "---")
}

fn repo(text: &str) -> Option<RepoId> {
    let text = text.split(" #").next().unwrap_or_default();
    text.trim().trim_matches(['"', '\'']).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(readme: &str) -> Vec<String> {
        base_models(readme).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_base_model_is_one_or_a_list() {
        let card = |what: &str| format!("---\nlicense: apache-2.0\n{what}\ntags:\n- mlx\n---\n# x");
        for one in [
            "base_model: maker/original",
            "base_model: 'maker/original' # the release",
            "base_model:\n- maker/original",
            "base_model:\r\n  - \"maker/original\"",
            "base_model: [maker/original]",
        ] {
            assert_eq!(names(&card(one)), ["maker/original"], "{one}");
        }
        assert_eq!(names(&card("base_model:\n- a/b\n- nothing\n- c/d")), ["a/b", "c/d"]);
        assert_eq!(names(&card("base_model_relation: quantized")), [""; 0]);
        // Only the head of the file counts.
        assert_eq!(names("# x\nbase_model: a/b\n"), [""; 0]);
        assert_eq!(names("text\n---\nbase_model: a/b\n---\n"), [""; 0]);
        assert_eq!(names(""), [""; 0]);
    }

    #[test]
    fn a_title_may_be_the_name() {
        let name = |readme: &str| own_name(readme).map(|id| id.to_string());
        assert_eq!(name("---\na: b\n---\n\n# acme/tiny-4bit\nText"), Some("acme/tiny-4bit".into()));
        assert_eq!(name("# A model\n# acme/tiny"), None);
    }
}
