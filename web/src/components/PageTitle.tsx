import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";

interface Props {
  title: string;
  children?: ComponentChildren;
}

/** The heading of the page, which is also the title of the browser tab. */
export function PageTitle({ title, children }: Props) {
  useEffect(() => {
    document.title = `${title} · CodeHub`;
  }, [title]);
  return (
    <div class="page-title">
      <h1>{title}</h1>
      {children}
    </div>
  );
}
