/** Hover cards: two sentences each. */
export const TERMS = {
  acceptRate:
    "The share of drafted tokens that the trunk would have written itself. Only those are kept, so the text is the same as without drafting.",
  tokensPerCycle:
    "How many tokens one pass of the trunk brings on average: its own, and the drafts it accepts. Without drafting this is exactly 1.",
  breakEven:
    "The accept rate above which drafting at this depth is faster than not drafting, from the times measured here. Below it a draft costs more than it saves.",
  ttft: "Time to first token: from sending your message until the first piece of the reply. Most of it is reading the prompt.",
} as const;
