import type { ComponentChildren } from "preact";

interface Props {
  href: string;
  current: boolean;
  testId: string;
  children: ComponentChildren;
}

export function NavLink({ href, current, testId, children }: Props) {
  return (
    <a class="nav-link" href={href} aria-current={current ? "page" : undefined} data-testid={testId}>
      {children}
    </a>
  );
}
