/// Words of the tags that write a tool call or its result: `<tool_call>`, `<arg_key:opensource>`, `<function>`.
const WORDS: [&str; 8] =
    ["tool", "tools", "function", "functions", "parameter", "parameters", "arg", "args"];
/// Besides one of `WORDS`, what a tag between bars must name: `<|tool_call|>` writes a call, `<|tool|>` begins a turn.
const CALLS: [&str; 2] = ["call", "calls"];
const BRACKETS: [(char, char); 2] = [('<', '>'), ('[', ']')];
const BARS: [char; 2] = ['|', '｜'];

/// Whether a special token writes a part of a tool call, and not a turn, an end or padding.
///
/// Some tokenizers call these tags special (Hy3), others do not (Step); they mean the same to a reader, who would see
/// the name and the arguments run into one word without them.
pub(super) fn is_tool_tag(token: &str) -> bool {
    let strip = |(left, right)| token.strip_prefix(left)?.strip_suffix(right);
    let Some(body) = BRACKETS.into_iter().find_map(strip) else { return false };
    let names = |list: &[&str]| {
        body.split(|c: char| !c.is_alphanumeric())
            .any(|word| list.contains(&word.to_ascii_lowercase().as_str()))
    };
    names(&WORDS) && (!body.contains(BARS) || names(&CALLS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_a_call_are_told_from_turns_and_ends() {
        for tag in [
            "<tool_calls:opensource>",
            "</tool_call>",
            "<tool_sep:opensource>",
            "<arg_key>",
            "</arg_value:opensource>",
            "<tool_response>",
            "[TOOL_CALLS]",
            "<|tool_call|>",
            "<｜tool▁calls▁begin｜>",
        ] {
            assert!(is_tool_tag(tag), "{tag}");
        }
        for tag in [
            "<s>",
            "</s>",
            "<pad>",
            "<|im_end|>",
            "<|tool|>",
            "<｜hy_User:opensource｜>",
            "<｜hy_eos:opensource｜>",
            "<think>",
            "<reponame>",
            "[INST]",
            "<stool>",
            "tool_call",
            "",
        ] {
            assert!(!is_tool_tag(tag), "{tag}");
        }
    }
}
