use std::collections::HashSet;

/// The two tags around a model's reasoning, spelled as the model writes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThoughtTags {
    pub open: String,
    pub close: String,
}

/// Where a reply starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThoughtState {
    /// `None` = the model does not reason in tags: nothing is taken for one.
    pub tags: Option<ThoughtTags>,
    /// The prompt ends inside a think block, so the reply starts there.
    pub inside: bool,
}

/// Words that name a think block, alone or beside a suffix or prefix: `<think>`, `<think:opensource>`, `<seed:think>`.
const WORDS: [&str; 5] = ["think", "thinking", "thought", "thoughts", "reasoning"];
/// Opening and closing bracket of a tag; the closing tag has a slash after the first.
const BRACKETS: [(char, char); 3] = [('<', '>'), ('[', ']'), ('◁', '▷')];
/// Bytes; longer bracketed texts are no tags.
const MAX_TAG_BYTES: usize = 64;

/// Pairs of think tags: first those that are tokens of their own, then those the template spells out. Either tag may
/// come from either place.
pub(super) fn find_tags(added_tokens: &[String], template: &str) -> Vec<ThoughtTags> {
    let spelled = bracketed(template);
    let known: HashSet<&str> =
        added_tokens.iter().map(String::as_str).chain(spelled.iter().copied()).collect();
    let mut found: Vec<ThoughtTags> = Vec::new();
    for open in added_tokens.iter().map(String::as_str).chain(spelled.iter().copied()) {
        let Some(close) = closing_tag(open) else { continue };
        let is_new = found.iter().all(|tags| tags.open != open);
        if is_new && known.contains(close.as_str()) {
            found.push(ThoughtTags { open: open.to_owned(), close });
        }
    }
    found
}

/// `</think>` for `<think>`; `None` for everything that does not open a think block.
fn closing_tag(tag: &str) -> Option<String> {
    let (left, right) = BRACKETS
        .into_iter()
        .find(|&(left, right)| tag.starts_with(left) && tag.ends_with(right))?;
    let body = tag.strip_prefix(left)?.strip_suffix(right)?;
    let is_thought =
        body.split(':').any(|word| WORDS.contains(&word.to_ascii_lowercase().as_str()));
    is_thought.then(|| format!("{left}/{body}{right}"))
}

/// Short texts in brackets, without white space.
fn bracketed(template: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (start, c) in template.char_indices() {
        let Some((left, right)) = BRACKETS.into_iter().find(|&(left, _)| left == c) else {
            continue;
        };
        let rest = &template[start..];
        let body = &rest[left.len_utf8()..];
        let end = body.find(|c: char| c == right || c == left || c.is_whitespace());
        if let Some(end) = end.filter(|&end| end <= MAX_TAG_BYTES && body[end..].starts_with(right))
        {
            found.push(&rest[..left.len_utf8() + end + right.len_utf8()]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opens(tokens: &[&str], template: &str) -> Vec<String> {
        let tokens: Vec<String> = tokens.iter().map(|&t| t.to_owned()).collect();
        find_tags(&tokens, template).into_iter().map(|tags| tags.open).collect()
    }

    #[test]
    fn tags_come_from_tokens_and_template() {
        let both = ["<think:opensource>", "</think:opensource>", "<tool_call>", "</tool_call>"];
        assert_eq!(opens(&both, ""), ["<think:opensource>"]);
        assert_eq!(opens(&[], "{{ '<think>\\n' }} x.split('</think>')"), ["<think>"]);
        assert_eq!(opens(&["</seed:think>"], "'<seed:think>'"), ["<seed:think>"]);
        assert_eq!(opens(&["[THINK]", "[/THINK]"], ""), ["[THINK]"]);
        assert_eq!(opens(&["◁think▷", "◁/think▷"], ""), ["◁think▷"]);
    }

    #[test]
    fn look_alikes_are_no_tags() {
        assert!(opens(&["<think>"], "").is_empty(), "there is no way out of it");
        assert!(
            opens(&["<no_think>", "</no_think>", "<|im_end|>"], "{% if a < think and b > c %}")
                .is_empty()
        );
        assert!(opens(&[], "messages[think] [/think").is_empty());
    }
}
