"""The paper's algorithms written plainly, once more, to compare with: they import no rule and no method."""
