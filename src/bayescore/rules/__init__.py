"""Update rules: pure elementwise functions under numbered equations, called by `methods` and by `optim`."""
